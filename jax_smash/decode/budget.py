"""The choice of the fastest budget of a ladder, made on the device while it decodes."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.draft.acceptance import Acceptance, best_rung, likeliest_tree
from jax_smash.draft.tree import DraftTree, Topology, at_nodes
from jax_smash.pytree import pytree

Carried = TypeVar("Carried")

ROUND_STEPS = 16
"""Steps after which trees and budget are chosen again.

If none of these steps drafted, one draft is made then and compared with the token that followed, without being checked.
"""


@pytree
class Sizing:
    """What the choice of a budget is based on.

    Attributes:
      known: how often drafts were kept.
      seconds: duration of a step with each tree of the ladder, drafting included.
      steps: steps made so far.
      used: steps made with each tree of the ladder.
    """

    known: Acceptance
    seconds: Float[Array, "rungs"]
    steps: Int[Array, ""]
    used: Int[Array, "rungs"]


def resized(
    ladder: tuple[Topology, ...], choice: Int[Array, ""], sizing: Sizing
) -> tuple[tuple[Topology, ...], Int[Array, ""]]:
    """At the end of a round, returns the trees most likely to be accepted and the index of the fastest of them."""

    def anew(_: Any) -> tuple[tuple[Topology, ...], Int[Array, ""]]:
        rates = sizing.known.rates()
        trees = tuple(
            likeliest_tree(rates[: tree.levels], nodes=tree.nodes, levels=tree.levels) if tree.levels else tree
            for tree in ladder
        )
        return trees, best_rung(rates, trees, sizing.seconds)

    return once(sizing.steps % ROUND_STEPS == 0, anew, (ladder, choice))


def once(due: Bool[Array, ""], change: Callable[[Carried], Carried], carried: Carried) -> Carried:
    """Applies a change if it is due, in place. A conditional would copy the arrays that it may leave unchanged."""

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
    """Returns what is known after comparing an unchecked draft with the token that was emitted.

    Only the children of the root are compared. The target has not read them, so nothing is known of what follows them.

    Args:
      known: what was known before.
      tree: the draft.
      rank: of each node. A negative rank is no trial; a node that the drafter left empty is a failed trial.
      target: the emitted token.
      running: rows that had not ended.
    """
    levels, ranks = known.hits.shape
    first = (tree.depth == 1) & running[:, None]
    agrees = first & tree.valid & (tree.token == target[:, None])
    place = jnp.argmax(agrees, axis=1).astype(jnp.int32)
    hit = jnp.where(agrees.any(1), at_nodes(rank, place), -1)
    of_rank = rank[:, :, None] == jnp.arange(ranks, dtype=jnp.int32)[None, None]
    tried = jnp.zeros((target.shape[0], levels, ranks), bool).at[:, 0].set((of_rank & first[:, :, None]).any(1))
    return known.update(jnp.full((target.shape[0], levels), -1, jnp.int32).at[:, 0].set(hit), tried)
