"""Where groups of tokens begin: rules of the base's entropy, and boundaries that what fusing costs moves.

Groups are told by `place`: the index of each token in its group, 0 where one begins.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.smash.entropy import entropy_bound


@runtime_checkable
class Rule(Protocol):
    """Whether a token may join the group before it. Hashable, without arrays."""

    def joins(self, entropy: Float[Array, "*batch"], peak: Float[Array, "*batch"]) -> Bool[Array, "*batch"]:
        """Marks the tokens that may join.

        Args:
          entropy: of each token, given what stands before it, in nats.
          peak: the largest entropy in the group so far.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Decreasing:
    """A token joins where it is nearly certain, or far more certain than the group's least certain one.

    Source: Liu and Zhang 2025, HAMburger, section 3 (segmentation).

    Attributes:
      floor: nats below which any token joins.
      ratio: share of the group's peak below which a token joins.
    """

    floor: float = 0.05
    ratio: float = 0.3

    def __post_init__(self) -> None:
        _check_range("floor", self.floor, 0.0, float("inf"))
        _check_range("ratio", self.ratio, 0.0, 1.0)

    def joins(self, entropy: Float[Array, "*batch"], peak: Float[Array, "*batch"]) -> Bool[Array, "*batch"]:
        """Marks the tokens that may join. See `Rule`."""
        return (entropy < self.floor) | (entropy < self.ratio * peak)


@dataclasses.dataclass(frozen=True)
class RatioOnly:
    """A token joins where its entropy is below a share of the group's peak."""

    ratio: float = 0.3

    def __post_init__(self) -> None:
        _check_range("ratio", self.ratio, 0.0, 1.0)

    def joins(self, entropy: Float[Array, "*batch"], peak: Float[Array, "*batch"]) -> Bool[Array, "*batch"]:
        """Marks the tokens that may join. See `Rule`."""
        return entropy < self.ratio * peak


@dataclasses.dataclass(frozen=True)
class Sliding:
    """A token joins where its entropy is below a bound, whatever the group begins with."""

    bound: float

    def __post_init__(self) -> None:
        _check_range("bound", self.bound, 0.0, float("inf"))

    def joins(self, entropy: Float[Array, "*batch"], peak: Float[Array, "*batch"]) -> Bool[Array, "*batch"]:
        """Marks the tokens that may join. See `Rule`."""
        return entropy < self.bound


@dataclasses.dataclass(frozen=True)
class UpperBound:
    """A token joins where its entropy and that of all the group is below a bound: others stand alone."""

    bound: float

    def __post_init__(self) -> None:
        _check_range("bound", self.bound, 0.0, float("inf"))

    def joins(self, entropy: Float[Array, "*batch"], peak: Float[Array, "*batch"]) -> Bool[Array, "*batch"]:
        """Marks the tokens that may join. See `Rule`."""
        return jnp.maximum(entropy, peak) < self.bound


_CLASSES: dict[str, Callable[..., Rule]] = {
    "decreasing": Decreasing,
    "ratio": RatioOnly,
    "sliding": Sliding,
    "upper-bound": UpperBound,
}
RULES: dict[str, dict[str, float]] = {
    "decreasing": {"floor": 0.05, "ratio": 0.3},
    "ratio": {"ratio": 0.3},
    "sliding": {"confidence": 0.7},
    "upper-bound": {"confidence": 0.95},
}
"""Settings of each rule by its name, as the paper's authors have them; `confidence` stands for its `entropy_bound`."""


def make_rule(name: str, vocab_size: int, **settings: float) -> Rule:
    """Returns a rule by its name, with its usual settings or others.

    Args:
      name: one of `RULES`.
      vocab_size: V.
      settings: in place of the usual ones.

    Raises:
      ValueError: there is no such rule, it has no such setting, or one is out of range.
    """
    if name not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}; got {name!r}")
    if unknown := sorted({*settings} - {*RULES[name]}):
        raise ValueError(f"rule {name!r} has {' and '.join(RULES[name])}; got {unknown[0]!r}")
    fields = RULES[name] | settings
    if "confidence" in fields:
        fields = {"bound": entropy_bound(fields["confidence"], vocab_size)}
    return _CLASSES[name](**fields)


@functools.partial(jax.jit, static_argnums=0, static_argnames="micro_steps")
def greedy_groups(
    rule: Rule, entropy: Float[Array, "B T"], may_join: Bool[Array, "B T"], *, micro_steps: int
) -> Int[Array, "B T"]:
    """Returns each token's place in its group, the groups made from left to right, each as long as it may be.

    Args:
      rule: says which tokens join.
      entropy: of each token, in nats, given what stands before it: that of the model's prediction one entry earlier.
      may_join: False at tokens that must begin a group: in prompts, at the first token of an answer, in padding. The
        first token of a row begins one in any case.
      micro_steps: J, tokens of a group at most.
    """

    def step(carry: tuple[Array, Array], token: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        (place, peak), (entropy, free) = carry, token
        joined = free & (place >= 0) & (place + 1 < micro_steps) & rule.joins(entropy, peak)
        place = jnp.where(joined, place + 1, 0)
        return (place, jnp.where(joined, jnp.maximum(peak, entropy), entropy)), place

    rows = entropy.shape[0]
    start = (jnp.full((rows,), -1, jnp.int32), jnp.zeros((rows,), entropy.dtype))
    return jax.lax.scan(step, start, (entropy.T, may_join.T))[1].T


def allowed_lengths(
    rule: Rule, entropy: Float[Array, "B T"], may_join: Bool[Array, "B T"], *, micro_steps: int
) -> Bool[Array, "B T J"]:
    """Marks, for each token and g from 1 to J, whether it may end a group of g tokens: each joins those before it.

    Arguments are those of `greedy_groups`.
    """

    def earlier(x: Array, by: int) -> Array:
        """Moves a value from each token to the one `by` places behind it; False or 0 where there is none."""
        return jnp.pad(x, ((0, 0), (by, 0)))[:, : x.shape[1]]

    width = entropy.shape[1]
    allowed = [jnp.ones_like(may_join)]
    # By their first token: entry t says whether the group that begins at t has as many tokens.
    peak, grown = entropy, jnp.ones_like(may_join)
    for further in range(1, micro_steps):
        ahead = jnp.pad(entropy[:, further:], ((0, 0), (0, min(further, width))))
        free = jnp.pad(may_join[:, further:], ((0, 0), (0, min(further, width))))
        grown &= free & rule.joins(ahead, peak)
        peak = jnp.maximum(peak, ahead)
        allowed.append(earlier(grown, further))
    return jnp.stack(allowed, axis=-1)


@jax.jit
def cheapest_groups(
    loss: Float[Array, "B T J"], allowed: Bool[Array, "B T J"], price: Float[Array, ""]
) -> Int[Array, "B T"]:
    """Returns each token's place in its group, for the groups whose losses and prices have the smallest sum.

    The post-generation-aware segmentation: with a rule's `allowed_lengths` and the trained embedder's own
    `fusion_loss`, boundaries move to where fusing costs least. At a price of 0 nothing that costs anything is fused.

    Source: the first open question of Liu and Zhang 2025, HAMburger, section 5.

    Args:
      loss: what it costs, in nats, that the g tokens that end at each token are one slot (entry g − 1); at least 0,
        and 0 for a token alone.
      allowed: marks the groups to choose from, by their last token and length; a token alone is always allowed.
      price: nats that a slot less is worth.
    """
    batch, _, steps = loss.shape
    alone = jnp.arange(steps, dtype=jnp.int32)[None, None] == 0
    cost = jnp.where(allowed | alone, loss + price, jnp.inf)

    def extend(before: Array, cost: Array) -> tuple[Array, Array]:
        """`before` holds the least sums up to 1, 2, … J tokens back."""
        sums = before + cost
        least = sums.min(axis=1, keepdims=True)
        # Sums are kept relative to the newest: in long rows they would outgrow their differences.
        kept = jnp.concatenate([jnp.zeros_like(least), before[:, :-1] - least], axis=1)
        return kept, jnp.argmin(sums, axis=1).astype(jnp.int32)

    start = jnp.where(alone[0], 0.0, jnp.inf) + jnp.zeros((batch, 1), loss.dtype)
    _, last = jax.lax.scan(extend, start.astype(loss.dtype), cost.swapaxes(0, 1))

    def retrace(left: Array, length: Array) -> tuple[Array, Array]:
        """`left` counts the tokens before this one in the group that is being retraced, from its end; −1 for none."""
        place = jnp.where(left < 0, length, left)
        return place - 1, place

    return jax.lax.scan(retrace, jnp.full((batch,), -1, jnp.int32), last, reverse=True)[1].T


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {least:g} to {most:g}; got {value}")
