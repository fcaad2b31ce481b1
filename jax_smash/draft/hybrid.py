"""Two drafters under one budget: a tree of one, and a chain of the other beside it."""

import dataclasses
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jax_smash.draft.context import Context
from jax_smash.draft.pair import DrafterPair, Pair
from jax_smash.draft.trees.tree import DraftTree, Topology, chain, pack, tree_of, unpack
from jax_smash.protocols import LateLearner, Params
from jax_smash.pytree import replace

MOST, LONGEST = 3, 10
"""What a chain has at most where its drafter says how much it deserves: quarters of a budget, and nodes."""


@runtime_checkable
class Judging(LateLearner, Protocol):
    """A drafter that says how much of a budget its chains deserve."""

    def quarters(self, own: Any, context: Context) -> Int[Array, "B"]:
        """Returns the quarters of a budget that each row's chain is to have, from 0 to 3."""
        ...


@dataclasses.dataclass(frozen=True)
class Hybrid(DrafterPair):
    """Gives a part of the budget to a chain of a second drafter, the rest to the tree of the first.

    The part is an eighth, of no more levels than the tree, unless the second drafter says for each row how much its
    chain deserves. Then the first drafts a whole tree, whose last nodes make room, and the chain may be deeper than it.
    Trees by name and those that are learned stand likeliest first, so the least likely nodes are the last.

    Both hang below one root. Where the chain begins as a branch of the tree does, its nodes are hung onto that branch's
    end in place of standing twice: what both propose is checked once, and the chain reaches deeper than the tree.

    Differs: merging recycled candidates with another drafter's is named as unexplored by Luo et al. 2024 (Token
    Recycling), section 6.

    Attributes:
      tree: drafts the tree.
      line: drafts the chain.
    """

    tree: LateLearner
    line: LateLearner

    branches = True
    """Drafts branch, whatever the topology."""

    def deepest(self, topology: Topology) -> int:
        """Returns an upper bound on the depth of what is drafted where a tree of this shape is asked for."""
        levels = self.tree.deepest(topology) if isinstance(self.tree, Hybrid) else topology.levels
        return max(levels, self._longest(topology))

    @property
    def parts(self) -> tuple[LateLearner, LateLearner]:
        """Both drafters."""
        return self.tree, self.line

    def propose(
        self, params: Params, own: Pair, shared: Pair, context: Context, topology: Topology
    ) -> tuple[DraftTree, Pair]:
        """Returns both drafts as one tree of the topology's nodes."""
        levels, length = self.deepest(topology), self._longest(topology)
        kept = topology
        if not isinstance(self.line, Judging):
            kept = _first_nodes(topology, topology.nodes - length)
        first, made = self.tree.propose(params, own[0], shared[0], context, kept)
        if not length:
            return first, (made, None)
        line = replace(chain(length), levels=levels)
        second, _ = self.line.propose(params, own[1], shared[1], context, line)
        count = jnp.full_like(context.pending, length)
        if isinstance(self.line, Judging):
            count = jnp.minimum(_quarters(topology, self.line.quarters(own[1], context)), length)
            count = jnp.minimum(count, second.valid.sum(1, dtype=jnp.int32) - 1)  # Room is made for what is there.
        return _joined(first, second, count, nodes=topology.nodes, levels=levels), (made, None)

    def _longest(self, topology: Topology) -> int:
        """Returns the most nodes of the chain."""
        if isinstance(self.line, Judging):
            return min(_quarters(topology, MOST), LONGEST)
        return min(round((topology.nodes - 1) / 8), topology.levels)


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


def _quarters(topology: Topology, quarters: Any) -> Any:
    """Returns so many quarters of a tree's drafted nodes, rounded."""
    return (quarters * (topology.nodes - 1) + 2) // 4


def _joined(tree: DraftTree, line: DraftTree, count: Int[Array, "B"], *, nodes: int, levels: int) -> DraftTree:
    """Returns the first nodes of a tree with those of a chain behind them; what the tree has already is invalid.

    Args:
      tree: of which `nodes` − `count` nodes are taken.
      line: of which `count` nodes behind the root are.
      count: for each row, at most as many as the chain has.
      nodes: of the joined tree.
      levels: of it.
    """
    whole, start = tree.token.shape[1], nodes - count
    taken = tree.valid & (jnp.arange(whole, dtype=jnp.int32)[None] < start[:, None])
    Above = Int[Array, "B"]  # The node that the chain has come to.

    def hang(above: Above, entry: tuple[Array, Array, Array]) -> tuple[Above, tuple[Array, Array]]:
        i, token, there = entry
        # A child of the node before with the same token: the chain goes on from there.
        same = (tree.parent == above[:, None]) & (tree.token == token[:, None]) & taken
        same = same.at[:, 0].set(False)
        found = same.any(1)
        own = jnp.where(found, jnp.argmax(same, axis=1).astype(jnp.int32), start + i)
        return own, (above, there & ~found & (i < count))

    steps = jnp.arange(line.token.shape[1] - 1, dtype=jnp.int32)
    entries = (steps, line.token[:, 1:].swapaxes(0, 1), line.valid[:, 1:].swapaxes(0, 1))
    _, (parent, valid) = jax.lax.scan(hang, jnp.zeros_like(tree.token[:, 0]), entries)
    place = jnp.arange(nodes, dtype=jnp.int32)[None]
    source = jnp.where(place < start[:, None], place, whole + place - start[:, None])

    def both(of_tree: Array, of_line: Array) -> Array:
        return jnp.take_along_axis(jnp.concatenate([of_tree, of_line], axis=1), source, axis=1)

    joined = tree_of(
        both(tree.token, line.token[:, 1:]),
        both(tree.parent, parent.swapaxes(0, 1)),
        both(tree.valid, valid.swapaxes(0, 1)),
        levels=levels,
    )
    if tree.rank is None:
        return joined
    # The tree's ranks are the drafter's; the chain's nodes are no trial of any.
    return replace(joined, rank=both(tree.rank, jnp.full_like(line.token[:, 1:], -1)))
