"""Two drafters under one budget: a tree of one, and a chain of the other beside it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jax_smash.draft.context import Context, Outcome, Seen
from jax_smash.draft.trees.tree import DraftTree, Topology, chain, pack, tree_of, unpack
from jax_smash.protocols import LateLearner, Needs, Params
from jax_smash.pytree import replace

Pair = tuple[Any, Any]
"""Of the two drafters."""


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
    def needs(self) -> Needs:
        """What either of the two needs."""
        first, second = self.tree.needs, self.line.needs
        return Needs(
            likeliest=max(first.likeliest, second.likeliest),
            totals=first.totals or second.totals,
            hidden=first.hidden or second.hidden,
            taps=tuple(sorted({*first.taps, *second.taps})),
        )

    def init(self, params: Params, batch: int, slots: int, block: int) -> Pair:
        """Makes what each of the two keeps of rows."""
        return self.tree.init(params, batch, slots, block), self.line.init(params, batch, slots, block)

    def read(self, params: Params, own: Pair, shared: Pair, seen: Seen) -> tuple[Pair, Pair]:
        """Lets both learn from a piece of the prompt."""
        return _both(
            self.tree.read(params, own[0], shared[0], seen),
            self.line.read(params, own[1], shared[1], seen),
        )

    def propose(
        self, params: Params, own: Pair, shared: Pair, context: Context, topology: Topology
    ) -> tuple[DraftTree, Pair]:
        """Returns both drafts as one tree of the topology's nodes."""
        length = min(topology.levels, topology.nodes // self.part)
        if not length:
            tree, made = self.tree.propose(params, own[0], shared[0], context, topology)
            return tree, (made, None)
        kept = _first_nodes(topology, topology.nodes - length)
        first, made = self.tree.propose(params, own[0], shared[0], context, kept)
        second, _ = self.line.propose(
            params, own[1], shared[1], context, replace(chain(length), levels=topology.levels)
        )
        return _joined(first, second, topology.levels), (made, None)

    def learn(self, params: Params, own: Pair, shared: Pair, made: Pair, outcome: Outcome) -> tuple[Pair, Pair]:
        """Lets both learn from the whole tree."""
        return _both(
            self.tree.learn(params, own[0], shared[0], made[0], outcome),
            self.line.learn(params, own[1], shared[1], made[1], outcome),
        )

    def follow(
        self,
        params: Params,
        own: Pair,
        shared: Pair,
        seen: Seen,
        pending: Int[Array, "B"],
    ) -> tuple[Pair, Pair]:
        """Lets both learn from what was read meanwhile."""
        return _both(
            self.tree.follow(params, own[0], shared[0], seen, pending),
            self.line.follow(params, own[1], shared[1], seen, pending),
        )


def _both(first: Pair, second: Pair) -> tuple[Pair, Pair]:
    """Returns what two drafters keep of rows, and what rows share, from what each keeps of both."""
    return (first[0], second[0]), (first[1], second[1])


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
