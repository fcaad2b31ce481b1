"""What drafted decoding keeps beside the text: the trees, what became of drafts, and what the drafter knows."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from jax_smash.decode.budget import Sizing
from jax_smash.decode.missed import Missed
from jax_smash.decode.state import DecodeState
from jax_smash.draft.context import Outcome
from jax_smash.draft.trees.acceptance import observe, sibling_ranks
from jax_smash.draft.trees.tree import DraftTree, Topology
from jax_smash.pytree import pytree, replace


@pytree
class DraftRows:
    """What drafted decoding notes of each row, under the role `drafts`.

    Attributes:
      tried: for each depth, from 1: steps with a node of this depth below a kept node, since the rows were made.
      kept: for each depth: steps in which such a node was kept.
      missed: what was read while nothing was drafted and the drafter has not learned from yet.
    """

    tried: Int[Array, "B levels"]
    kept: Int[Array, "B levels"]
    missed: Missed


@pytree
class Trees:
    """The trees that all rows draft, under the role `trees`.

    Attributes:
      ladder: the tree of each budget, the smallest first; a root alone is plain decoding.
      choice: index of the budget in use.
      sizing: what the choice is based on; None where it is fixed.
    """

    ladder: tuple[Topology, ...]
    choice: Int[Array, ""]
    sizing: Sizing | None = None


def memory_of(state: DecodeState) -> tuple[Any, Any]:
    """Returns what the drafter keeps of the rows, and what they share."""
    return state.rows.memory["drafter"], state.shared.memory["drafter"]


def with_memory(state: DecodeState, own: Any, shared: Any) -> DecodeState:
    """Returns a state in which the drafter keeps this."""
    memory = state.shared.memory | {"drafter": shared}
    return replace(state, rows=state.rows.remembering(drafter=own), shared=replace(state.shared, memory=memory))


def trees_of(state: DecodeState) -> Any:
    """Returns the `Trees` of a state."""
    return state.shared.memory["trees"]


def with_trees(state: DecodeState, trees: Trees) -> DecodeState:
    """Returns a state that drafts these trees."""
    return replace(state, shared=replace(state.shared, memory=state.shared.memory | {"trees": trees}))


def notes_of(state: DecodeState) -> DraftRows:
    """Returns what is noted of each row."""
    return state.rows.memory["drafts"]


def with_notes(state: DecodeState, notes: DraftRows) -> DecodeState:
    """Returns a state with these notes."""
    return replace(state, rows=state.rows.remembering(drafts=notes))


def with_used(trees: Trees, made: Int[Array, ""]) -> Trees:
    """Returns trees whose sizing counts more steps with the chosen one."""
    sizing = trees.sizing
    assert sizing is not None
    return replace(
        trees, sizing=replace(sizing, steps=sizing.steps + made, used=sizing.used.at[trees.choice].add(made))
    )


def noted(state: DecodeState, outcome: Outcome) -> DecodeState:
    """Returns a state that counts at which depths nodes were tried and kept, by row and for the choice of trees."""
    trees, notes, tree = trees_of(state), notes_of(state), outcome.tree
    if trees.sizing is not None:
        known = observe(trees.sizing.known, tree, outcome.accepted, ranks_of(tree), outcome.running)
        state = with_trees(state, replace(trees, sizing=replace(trees.sizing, known=known)))
    if not tree.levels:
        return state
    depth = jnp.arange(1, tree.levels + 1, dtype=jnp.int32)[None]
    # A child was tried at this depth if the node kept at the depth before has one.
    parent = outcome.accepted.path[:, :-1]
    below = (tree.parent[:, None] == parent[:, :, None]) & tree.valid[:, None]
    has_child = (below & (tree.depth[:, None] == depth[:, :, None])).any(-1)
    reached = (depth <= outcome.accepted.count[:, None]) & outcome.running[:, None]
    kept = (depth < outcome.accepted.count[:, None]) & outcome.running[:, None]
    notes = replace(
        notes,
        tried=notes.tried.at[:, : tree.levels].add((has_child & reached).astype(jnp.int32)),
        kept=notes.kept.at[:, : tree.levels].add(kept.astype(jnp.int32)),
    )
    return with_notes(state, notes)


def ranks_of(tree: DraftTree) -> Int[Array, "B M"]:
    """Returns the place of each node among its parent's children, as the drafter says it or as they stand."""
    return sibling_ranks(tree) if tree.rank is None else tree.rank
