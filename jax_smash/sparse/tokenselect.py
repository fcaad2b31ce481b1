"""TokenSelect: slots that all heads vote for, chosen again only when the query has changed."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.attention import slot_probabilities
from jax_smash.cache import SelectedLayer, Selection, Step
from jax_smash.config import ModelConfig
from jax_smash.pytree import pytree, replace
from jax_smash.sparse.selecting import Selecting


@pytree
class LastChoice:
    """The last choice that was made anew.

    Attributes:
      query: that it was made for; zeros where there was none.
      chosen: the slots between the first entries and the last ones.
      since: the first slot of the last entries.
    """

    query: Float[Array, "B N H"]
    chosen: Bool[Array, "B S"]
    since: Int[Array, "B"]


@pytree
class _Choice:
    """A choice, before it is committed.

    Attributes:
      fresh: it was made anew.
      last: what it then leaves behind.
    """

    fresh: Bool[Array, "B"]
    last: LastChoice


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenSelect(Selecting):
    """Reads the first entries, the last ones, and those between that have most of all heads' probabilities.

    score(s) = Σ over query heads of softmax(q kᵀ)(s)

    One set a layer. A query like the one that the last choice was made for reads that choice again, and no other keys.

    Source: Wu et al. 2024, "TokenSelect: Efficient Long-Context Inference and Length Extrapolation for LLMs via Dynamic
    Token-Level KV Cache Selection", section 4; 128 first entries, 512 last ones and 2,048 others, cosine 0.9.
    Differs: prompts are read densely, or step by step, not in pieces that choose. A cosine is over all heads of a row.
    While the budget has room, a choice that is read again comes with entries that were among the last ones when it was
    made, or came later: the newest first.

    Attributes:
      cosine: from this on, a query is like another.
    """

    budget: int | float = 128 + 512 + 2048
    sinks: int = 128
    window: int = 512
    cosine: float = 0.9

    remembers = True  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -1 <= self.cosine <= 1:
            raise ValueError(f"cosine must be from -1 to 1; got {self.cosine}")
        if self.head_shares is not None:
            raise ValueError("head_shares must be None: all heads share a choice")

    def init(self, config: ModelConfig, layer: int, keys: Float[Array, "B K S H"]) -> Any:
        """Begins without a choice."""
        rows, _, slots, width = keys.shape
        return LastChoice(
            query=jnp.zeros((rows, config.num_heads, width), keys.dtype),
            chosen=jnp.zeros((rows, slots), bool),
            since=jnp.zeros((rows,), jnp.int32),
        )

    def scorer_bytes(self, config: ModelConfig, slots: int, itemsize: int) -> int:
        """Returns the bytes of all keys, which are read where a choice is made anew."""
        return config.held_kv_heads * slots * config.head_width * itemsize

    def select(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Selection:
        """Scores slots by all heads' probabilities, or takes the last choice again."""
        last, shape = view.channels, view.layer.keys.shape[:3]
        alike = _cosine(query, last.query) > self.cosine

        def votes() -> Float[Array, "B S"]:
            latest = jnp.maximum(view.filled - 1, 0)
            position = jnp.take_along_axis(view.layer.position, latest[:, None], axis=1)
            return slot_probabilities(query[:, None], position, view)[:, :, :, 0].sum((1, 2))

        score = jax.lax.cond(alike.all(), lambda: jnp.zeros((shape[0], shape[2]), jnp.float32), votes)
        slot = jnp.arange(shape[2], dtype=jnp.int32)[None]
        newer = jnp.where(slot >= last.since[:, None], slot.astype(jnp.float32) / shape[2], -jnp.inf)
        again = jnp.where(last.chosen, 1.0, newer)
        score = jnp.where(alike[:, None], again, score)
        found = self.best(view, score[:, None])
        chosen = jnp.zeros((shape[0], shape[2]), bool)
        row = jnp.arange(shape[0], dtype=jnp.int32)[:, None]
        chosen = chosen.at[row, found.slots[:, 0]].max(found.valid[:, 0])
        since = jnp.maximum(view.filled - self.window, 0)
        chosen &= (slot >= self.sinks) & (slot < since[:, None])
        return replace(found, extra=_Choice(fresh=~alike, last=LastChoice(query=query, chosen=chosen, since=since)))

    def committed(self, view: SelectedLayer, step: Step) -> Any:
        """Keeps a choice that was made anew."""
        if step.note.selection is None:
            return view.channels
        made = step.note.selection.extra
        taken = made.fresh & (step.write.count > 0)

        def kept(new: Array, old: Array) -> Array:
            return jnp.where(taken.reshape(-1, *(1,) * (new.ndim - 1)), new.astype(old.dtype), old)

        return jax.tree.map(kept, made.last, view.channels)


def _cosine(a: Float[Array, "B N H"], b: Float[Array, "B N H"]) -> Float[Array, "B"]:
    """Returns the cosine of each row's queries; −1 where one is zero."""
    a, b = (x.reshape(x.shape[0], -1).astype(jnp.float32) for x in (a, b))
    product, size = (a * b).sum(1), jnp.sqrt((a * a).sum(1) * (b * b).sum(1))
    return jnp.where(size > 0, product / jnp.where(size > 0, size, 1.0), -1.0)
