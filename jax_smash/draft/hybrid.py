"""Two drafters under one budget: a tree of one, and a chain of the other beside it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jax_smash.draft.tree import DraftTree, Topology, chain, pack, tree_of, unpack
from jax_smash.protocols import LateLearner, Params, learned_tokens, learned_totals
from jax_smash.pytree import replace


@dataclasses.dataclass(frozen=True)
class Hybrid:
    """Gives a part of the budget to a chain of a second drafter, the rest to the tree of the first.

    Both hang below one root. Where the chain begins as a branch of the tree does, its nodes are hung onto that branch's
    end in place of standing twice: what both propose is checked once, and the chain reaches deeper than the tree.

    Differs: merging recycled candidates with another drafter's is named as unexplored by Luo et al. 2024 (Token
    Recycling), section 6.

    Attributes:
      tree: drafts the tree.
      line: drafts the chain.
      part: one node of so many belongs to the chain.
    """

    tree: LateLearner
    line: LateLearner
    part: int = 4

    branches = True
    """Drafts branch, whatever the topology."""

    @property
    def likeliest(self) -> int:
        """Tokens of each node that the two learn from."""
        return max(learned_tokens(self.tree), learned_tokens(self.line))

    @property
    def totals(self) -> bool:
        """Whether one of them learns their probabilities, too."""
        return learned_totals(self.tree) or learned_totals(self.line)

    def init(self, params: Params, batch: int, slots: int) -> tuple[Any, Any]:
        """Makes what each of the two keeps of rows."""
        return self.tree.init(params, batch, slots), self.line.init(params, batch, slots)

    def prefill(self, params: Params, state: Any, chunk: Any, hidden: Any, taps: Any) -> Any:
        """Lets both learn from a chunk of the prompt."""
        for i, drafter in enumerate((self.tree, self.line)):
            state = _whole(state, drafter.prefill(params, _view(state, i), chunk, hidden, taps), i)
        return state

    def propose(self, params: Params, state: Any, topology: Topology) -> tuple[DraftTree, Any]:
        """Returns both drafts as one tree of the topology's nodes."""
        length = min(topology.levels, topology.nodes // self.part)
        if not length:
            tree, made = self.tree.propose(params, _view(state, 0), topology)
            return tree, (made, None)
        kept = topology.nodes - length
        first, made = self.tree.propose(params, _view(state, 0), _first_nodes(topology, kept))
        second, _ = self.line.propose(params, _view(state, 1), replace(chain(length), levels=topology.levels))
        return _joined(first, second, topology.levels), (made, None)

    def lesson(self, params: Params, state: Any, checked: Any) -> Any:
        """Returns what each of the two needs of the whole tree."""
        return tuple(
            drafter.lesson(params, _view(state, i), replace(checked, made=checked.made[i]))
            for i, drafter in enumerate((self.tree, self.line))
        )

    def observe(self, params: Params, state: Any, verified: Any) -> Any:
        """Lets both learn from the whole tree."""
        for i, drafter in enumerate((self.tree, self.line)):
            seen = replace(verified, lesson=verified.lesson[i])
            state = _whole(state, drafter.observe(params, _view(state, i), seen), i)
        return state

    def follow(self, params: Params, state: Any, token: Int[Array, "B P"], count: Int[Array, "B"]) -> Any:
        """Lets both learn from what was read meanwhile."""
        for i, drafter in enumerate((self.tree, self.line)):
            state = _whole(state, drafter.follow(params, _view(state, i), token, count), i)
        return state


def _first_nodes(topology: Topology, nodes: int) -> Topology:
    """Returns the tree of the first nodes; parents stand before their children, so it is one."""
    seen = unpack(topology.ancestors, topology.nodes)[:nodes, :nodes]
    return Topology(
        parent=topology.parent[:nodes],
        depth=topology.depth[:nodes],
        rank=topology.rank[:nodes],
        ancestors=pack(seen),
        levels=topology.levels,
    )


def _joined(tree: DraftTree, line: DraftTree, levels: int) -> DraftTree:
    """Returns a tree with a chain's nodes behind its own, those that it has already marked invalid."""
    nodes = tree.token.shape[1]
    Above = Int[Array, "B"]  # The node that the chain has come to.

    def hang(above: Above, entry: tuple[Array, Array, Array]) -> tuple[Above, tuple[Array, Array]]:
        own, token, there = entry
        # A child of the node before with the same token: the chain goes on from there.
        same = (tree.parent == above[:, None]) & (tree.token == token[:, None]) & tree.valid
        same = same.at[:, 0].set(False)
        found = same.any(1)
        return jnp.where(found, jnp.argmax(same, axis=1).astype(jnp.int32), own), (above, there & ~found)

    behind = jnp.arange(nodes, nodes + line.token.shape[1] - 1, dtype=jnp.int32)
    entries = (behind, line.token[:, 1:].swapaxes(0, 1), line.valid[:, 1:].swapaxes(0, 1))
    _, (parent, valid) = jax.lax.scan(hang, jnp.zeros_like(tree.token[:, 0]), entries)
    token = jnp.concatenate([tree.token, line.token[:, 1:]], axis=1)
    joined = tree_of(
        token,
        jnp.concatenate([tree.parent, parent.swapaxes(0, 1)], axis=1),
        jnp.concatenate([tree.valid, valid.swapaxes(0, 1)], axis=1),
        levels=levels,
    )
    if tree.rank is None:
        return joined
    # The tree's ranks are the drafter's; the chain's nodes are no trial of any.
    none = jnp.full((token.shape[0], token.shape[1] - nodes), -1, jnp.int32)
    return replace(joined, rank=jnp.concatenate([tree.rank, none], axis=1))


def _view(state: Any, i: int) -> Any:
    """Returns the state as one of the two sees it."""
    draft, memory = state.rows.draft, state.shared.memory
    return replace(
        state,
        rows=replace(state.rows, draft=replace(draft, drafter=draft.drafter[i])),
        shared=replace(state.shared, memory=replace(memory, drafter=memory.drafter[i])),
    )


def _whole(state: Any, view: Any, i: int) -> Any:
    """Returns the state with what one of the two changed."""

    def put(pair: tuple[Any, Any], one: Any) -> tuple[Any, Any]:
        return (one, pair[1]) if i == 0 else (pair[0], one)

    return replace(
        view,
        rows=replace(
            view.rows,
            draft=replace(view.rows.draft, drafter=put(state.rows.draft.drafter, view.rows.draft.drafter)),
        ),
        shared=replace(
            view.shared,
            memory=replace(view.shared.memory, drafter=put(state.shared.memory.drafter, view.shared.memory.drafter)),
        ),
    )
