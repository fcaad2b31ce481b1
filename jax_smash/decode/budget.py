"""Which budget of a ladder of trees decodes fastest, decided on the device while it decodes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.draft.acceptance import Acceptance, best_rung, likeliest_tree
from jax_smash.draft.tree import DraftTree, Topology
from jax_smash.pytree import pytree, replace

RESIZE_STEPS = 16
"""Steps after which trees and budget are chosen anew."""

SHADOW_STEPS = 8
"""Steps without drafts after which one is made and compared with the next token, without being checked."""


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
) -> tuple[tuple[Topology, ...], Int[Array, ""], Sizing]:
    """Counts a step, and every `RESIZE_STEPS` of them makes the likeliest trees and chooses the fastest."""

    def anew() -> tuple[tuple[Topology, ...], Int[Array, ""]]:
        rates = sizing.known.rates()
        trees = tuple(
            likeliest_tree(rates[: tree.levels], nodes=tree.nodes, levels=tree.levels) if tree.levels else tree
            for tree in ladder
        )
        return trees, best_rung(rates, trees, sizing.seconds)

    ladder, choice = jax.lax.cond(sizing.steps % RESIZE_STEPS == 0, anew, lambda: (ladder, choice))
    return ladder, choice, replace(sizing, steps=sizing.steps + 1, used=sizing.used.at[choice].add(1))


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
