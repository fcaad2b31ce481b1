"""Which budget of a ladder of trees decodes fastest, decided on the device while it decodes."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.draft.acceptance import Acceptance, best_rung, likeliest_tree
from jax_smash.draft.tree import DraftTree, Topology
from jax_smash.pytree import pytree

Carried = TypeVar("Carried")

ROUND_STEPS = 16
"""Steps after which trees and budget are chosen anew.

Where none of them drafted, one draft is made then and compared with the token that came, without being checked.
"""


@pytree
class Sizing:
    """What a choice of budget rests on.

    Attributes:
      known: how often drafts were kept.
      seconds: of a step with each tree of the ladder, drafting included.
      steps: made so far.
      used: steps that each tree of the ladder was used for.
    """

    known: Acceptance
    seconds: Float[Array, "rungs"]
    steps: Int[Array, ""]
    used: Int[Array, "rungs"]


def resized(
    ladder: tuple[Topology, ...], choice: Int[Array, ""], sizing: Sizing
) -> tuple[tuple[Topology, ...], Int[Array, ""]]:
    """Returns the likeliest trees and the fastest of them, at the end of every round."""

    def anew(_: Any) -> tuple[tuple[Topology, ...], Int[Array, ""]]:
        rates = sizing.known.rates()
        trees = tuple(
            likeliest_tree(rates[: tree.levels], nodes=tree.nodes, levels=tree.levels) if tree.levels else tree
            for tree in ladder
        )
        return trees, best_rung(rates, trees, sizing.seconds)

    return once(sizing.steps % ROUND_STEPS == 0, anew, (ladder, choice))


def once(due: Bool[Array, ""], change: Callable[[Carried], Carried], carried: Carried) -> Carried:
    """Applies a change where it is due, in place: a conditional copies what it may leave as it was."""

    def changed(turn: tuple[Carried, Array]) -> tuple[Carried, Array]:
        return change(turn[0]), jnp.zeros_like(due)

    return jax.lax.while_loop(lambda turn: turn[1], changed, (carried, due))[0]


def seen_in_shadow(
    known: Acceptance,
    tree: DraftTree,
    rank: Int[Array, "B M"],
    target: Int[Array, "B"],
    running: Bool[Array, "B"],
) -> Acceptance:
    """Returns what is known after an unchecked draft met the token that was emitted.

    Only the root's children are compared: what would have followed them was not asked of the target.

    Args:
      known: before.
      tree: what would have been checked.
      rank: of each node; a negative one is no trial. A place that the drafter left empty is a trial that failed.
      target: the emitted token.
      running: rows that had not ended.
    """
    levels, ranks = known.hits.shape
    first = (tree.depth == 1) & running[:, None]
    agrees = first & tree.valid & (tree.token == target[:, None])
    place = jnp.argmax(agrees, axis=1).astype(jnp.int32)[:, None]
    hit = jnp.where(agrees.any(1), jnp.take_along_axis(rank, place, axis=1)[:, 0], -1)
    of_rank = rank[:, :, None] == jnp.arange(ranks, dtype=jnp.int32)[None, None]
    tried = jnp.zeros((target.shape[0], levels, ranks), bool).at[:, 0].set((of_rank & first[:, :, None]).any(1))
    return known.update(jnp.full((target.shape[0], levels), -1, jnp.int32).at[:, 0].set(hit), tried)
