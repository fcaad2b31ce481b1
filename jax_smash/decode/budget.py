"""The choice of the fastest budget of a ladder, made on the device while it decodes."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.draft.trees import sizing as on_host
from jax_smash.draft.trees.acceptance import Acceptance, acceptance, expected_tokens, likeliest_tree
from jax_smash.draft.trees.tree import DraftTree, Topology, at_nodes
from jax_smash.pytree import pytree, replace

Carried = TypeVar("Carried")

ROUND_STEPS = 16
"""Steps after which trees and budget are chosen again.

If none of these steps drafted, one draft is made then and compared with the token that followed, without being checked.
A drafter that reads the target's cache makes none.
"""


@pytree
class Sizing:
    """What the choice of a budget is based on.

    Attributes:
      known: how often drafts were kept.
      expected: tokens that a step and row emits with each tree of the ladder, as known at the end of the last round.
      seconds: duration of a step with each tree, drafting included; only their ratios matter. An infinite one is never
        chosen.
      steps: steps made so far.
      used: steps made with each tree.
    """

    known: Acceptance
    expected: Float[Array, "rungs"]
    seconds: Float[Array, "rungs"]
    steps: Int[Array, ""]
    used: Int[Array, "rungs"]


def unused(rates: on_host.Rates, ladder: Sequence[Topology], seconds: Sequence[float]) -> Sizing:
    """Returns what the choice is based on before the first step.

    Args:
      rates: of the drafter.
      ladder: trees; a root alone is plain decoding.
      seconds: of a step with each.
    """
    return Sizing(
        known=acceptance(rates),
        expected=jnp.asarray([on_host.expected_tokens(rates, tree) for tree in ladder], jnp.float32),
        seconds=jnp.asarray(seconds, jnp.float32),
        steps=jnp.zeros((), jnp.int32),
        used=jnp.zeros((len(ladder),), jnp.int32),
    )


def resized(
    ladder: tuple[Topology, ...], choice: Int[Array, ""], sizing: Sizing
) -> tuple[tuple[Topology, ...], Int[Array, ""], Sizing]:
    """At the end of a round, makes the trees that are most likely to be accepted and chooses the fastest of them.

    Returns:
      The trees, the index of the one with most tokens a second (the first of equal ones), and what that is based on.
    """

    def anew(_: Any) -> tuple[tuple[Topology, ...], Int[Array, ""], Float[Array, "rungs"]]:
        rates = sizing.known.rates()
        trees = tuple(
            likeliest_tree(rates[: tree.levels], nodes=tree.nodes, levels=tree.levels) if tree.levels else tree
            for tree in ladder
        )
        expected = jnp.stack([expected_tokens(rates, tree) for tree in trees])
        return trees, jnp.argmax(expected / sizing.seconds).astype(jnp.int32), expected

    ladder, choice, expected = changed_if(sizing.steps % ROUND_STEPS == 0, anew, (ladder, choice, sizing.expected))
    return ladder, choice, replace(sizing, expected=expected)


def changed_if(due: Bool[Array, ""], change: Callable[[Carried], Carried], carried: Carried) -> Carried:
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
