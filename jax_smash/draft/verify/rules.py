"""Rules by which drawn children are accepted or refused, so that what is emitted follows the target.

A rule sees one node a row: p, the target's distribution of the next token; q, the one its children were drawn from. It
is exact whatever p and q are, as long as q is true: a child that was chosen in another way, or dropped because of what
it is, changes the distribution of what is emitted.
"""

import abc
import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.pytree import pytree, replace


@pytree
class Trial:
    """Where the children of one node a row are tried.

    Attributes:
      target: p, over the tokens that may still follow.
      proposal: q, that the next child was drawn from; all 0 where none can have been drawn any more.
      discount: ρ, at least 1: a child x is accepted with probability min(1, p(x) / (ρ·q(x))).
      children: k, of the node.
    """

    target: Float[Array, "B V"]
    proposal: Float[Array, "B V"]
    discount: Float[Array, "B"]
    children: Int[Array, "B"]


class Rule(abc.ABC):
    """How children are tried. Stateless and hashable: it is compiled in."""

    def arrive(self, target: Float[Array, "B V"], proposal: Float[Array, "B V"], children: Int[Array, "B"]) -> Trial:
        """Returns the trial at a node, before its first child."""
        return Trial(target=target, proposal=proposal, discount=jnp.ones_like(children, jnp.float32), children=children)

    @abc.abstractmethod
    def refuse(self, trial: Trial, token: Int[Array, "B"]) -> Trial:
        """Returns the trial of the next child, once this token is refused."""

    def rest(self, trial: Trial) -> Float[Array, "B V"]:
        """Returns the distribution of the next token once no child is left, with or without a refusal."""
        return trial.target


@dataclasses.dataclass(frozen=True)
class Independent(Rule):
    """Each child is drawn from all of q. With one child a node, classic speculative sampling.

    After a refusal p becomes (p − q)⁺, normalised.

    Source: Leviathan et al. and Chen et al. (one child); SpecInfer's multi-step speculative sampling (several).
    """

    def refuse(self, trial: Trial, token: Int[Array, "B"]) -> Trial:
        """Returns the trial with what the proposal covers taken from the target."""
        return replace(trial, target=left_over(trial.target, trial.proposal))


@dataclasses.dataclass(frozen=True)
class WithoutReplacement(Rule):
    """Siblings differ: each is drawn from q over what its elder siblings left, none of which may be missing.

    After a refusal p becomes (p − q)⁺ and q loses the refused token; both are normalised.

    Source: Sequoia's sampling and verification.
    """

    def refuse(self, trial: Trial, token: Int[Array, "B"]) -> Trial:
        """Returns the trial with what the proposal covers taken from the target, and the token from the proposal."""
        other = jnp.arange(trial.proposal.shape[1], dtype=jnp.int32)[None] != token[:, None]
        proposal = jnp.where(other, trial.proposal, 0)
        total = proposal.sum(1, keepdims=True)
        return replace(
            trial,
            target=left_over(trial.target, trial.proposal),
            proposal=proposal / jnp.where(total > 0, total, 1),
        )


def accepts(trial: Trial, token: Int[Array, "B"], chance: Float[Array, "B"]) -> Bool[Array, "B"]:
    """Whether each row's child is accepted.

    A token that the target is certain of is accepted however it was proposed: nothing else can be emitted in its place.
    A row that decodes greedily therefore accepts what its likeliest token is, and nothing else.

    Args:
      trial: of the child's parent.
      token: the child's.
      chance: uniform, from 0 up to and not including 1.
    """
    target = jnp.take_along_axis(trial.target, token[:, None], axis=1)[:, 0]
    proposal = jnp.take_along_axis(trial.proposal, token[:, None], axis=1)[:, 0]
    return (target >= 1) | ((proposal > 0) & (chance * trial.discount * proposal < target))


def left_over(target: Float[Array, "B V"], covered: Float[Array, "B V"]) -> Float[Array, "B V"]:
    """Returns the normalised positive part of the difference.

    Where nothing is left, a refusal had probability 0 but for rounding; the target then stays as it is.
    """
    left = jnp.maximum(target - covered, 0)
    total = left.sum(1, keepdims=True)
    return jnp.where(total > 0, left / jnp.where(total > 0, total, 1), target)
