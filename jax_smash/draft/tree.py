"""Draft trees: what a drafter proposes in one step, and the shapes that trees are cut to."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from jax_smash.cache import Block
from jax_smash.pytree import pytree, replace, static

WORD = 32
"""Ancestor bits in a word."""


@pytree
class Topology:
    """The shape of a tree, the same for every row: node 0 is the root, and a parent stands before its children.

    Only the number of nodes and the number of levels are compiled in; which node hangs where is traced.

    Attributes:
      parent: of each node; the root is its own.
      depth: edges from the root.
      rank: of a node among its parent's candidates, likeliest first; 0 at the root.
      ancestors: bit j of node i is set where node j lies between the root and node i, both included.
      levels: no node is deeper.
    """

    parent: Int[Array, "M"]
    depth: Int[Array, "M"]
    rank: Int[Array, "M"]
    ancestors: UInt32[Array, "M W"]
    levels: int = static()

    @property
    def nodes(self) -> int:
        """M, the root included."""
        return self.parent.shape[0]


@pytree
class DraftTree:
    """Proposed tokens, a tree a row. Node 0 is the row's pending token.

    Attributes:
      token: of each node; anything where a node is not valid.
      parent: of each node; the root is its own.
      depth: edges from the root.
      valid: False where nothing is proposed; a valid node's ancestors are valid.
      ancestors: packed bits, as in `Topology`.
      proposal: of each node, the distribution that its children were drawn from; None where children are certain.
      rank: of each node among its parent's candidates, likeliest first; None where only the order of siblings tells.
      levels: no node is deeper.
    """

    token: Int[Array, "B M"]
    parent: Int[Array, "B M"]
    depth: Int[Array, "B M"]
    valid: Bool[Array, "B M"]
    ancestors: UInt32[Array, "B M W"]
    proposal: Float[Array, "B M V"] | None = None
    rank: Int[Array, "B M"] | None = None
    levels: int = static()

    @property
    def block(self) -> Block:
        """Which nodes see which in the target's forward."""
        return Block(valid=self.valid, ancestors=self.ancestors)

    def paths(self) -> Int[Array, "B M levels"]:
        """Returns the tokens below the root that lead to each node, itself included, padded with −1."""
        node = jnp.broadcast_to(jnp.arange(self.token.shape[1], dtype=jnp.int32), self.token.shape)
        columns = [jnp.full_like(self.token, -1)] * self.levels
        # Upwards from each node: the token that is met belongs into the column of its own depth.
        for _ in range(self.levels):
            depth = jnp.take_along_axis(self.depth, node, axis=1)
            token = jnp.take_along_axis(self.token, node, axis=1)
            columns = [jnp.where(depth == i + 1, token, column) for i, column in enumerate(columns)]
            node = jnp.take_along_axis(self.parent, node, axis=1)
        return jnp.stack(columns, axis=2) if columns else jnp.zeros((*self.token.shape, 0), jnp.int32)


def grow(topology: Topology, token: Int[Array, "B M"]) -> DraftTree:
    """Returns the tree of a topology with these tokens; a negative one is no proposal, nor is what hangs below it."""
    shape = token.shape
    proposed = (token >= 0).at[:, 0].set(True)
    return DraftTree(
        token=jnp.maximum(token, 0),
        parent=jnp.broadcast_to(topology.parent, shape),
        depth=jnp.broadcast_to(topology.depth, shape),
        valid=all_ancestors(proposed, jnp.broadcast_to(topology.ancestors, (*shape, topology.ancestors.shape[1]))),
        ancestors=jnp.broadcast_to(topology.ancestors, (*shape, topology.ancestors.shape[1])),
        rank=jnp.broadcast_to(topology.rank, shape),
        levels=topology.levels,
    )


def tree_of(
    token: Int[Array, "B M"], parent: Int[Array, "B M"], valid: Bool[Array, "B M"], *, levels: int
) -> DraftTree:
    """Returns a tree whose shape differs from row to row.

    Args:
      token: of each node, the pending token first.
      parent: of each node, standing before it; 0 at the root.
      valid: False where nothing is proposed; what hangs below such a node is not proposed either.
      levels: no node is deeper.
    """
    nodes = token.shape[1]
    node = jnp.broadcast_to(jnp.arange(nodes, dtype=jnp.int32), token.shape)
    own = _bits(node, nodes)
    ancestors, depth, above = own, jnp.zeros_like(token), node
    for _ in range(levels):
        depth += (above > 0).astype(jnp.int32)
        above = jnp.take_along_axis(parent, above, axis=1)
        ancestors |= _bits(above, nodes)
    tree = DraftTree(
        token=jnp.maximum(token, 0), parent=parent, depth=depth, valid=valid, ancestors=ancestors, levels=levels
    )
    return replace(tree, valid=all_ancestors(valid.at[:, 0].set(True), ancestors))


def all_ancestors(marked: Bool[Array, "B M"], ancestors: UInt32[Array, "B M W"]) -> Bool[Array, "B M"]:
    """Marks the nodes that are marked with all their ancestors."""
    missing = pack(~marked)[:, None]
    return ((ancestors & missing) == jnp.uint32(0)).all(-1)


def pack(marked: Bool[Array, "*batch M"]) -> UInt32[Array, "*batch W"]:
    """Packs flags into words: node j is bit j % 32 of word j // 32."""
    nodes = marked.shape[-1]
    words = -(-nodes // WORD)
    padded = jnp.pad(marked, [(0, 0)] * (marked.ndim - 1) + [(0, words * WORD - nodes)])
    bits = padded.reshape(*marked.shape[:-1], words, WORD).astype(jnp.uint32)
    place = jnp.arange(WORD, dtype=jnp.uint32).reshape((1,) * marked.ndim + (WORD,))
    return (bits << place).sum(-1, dtype=jnp.uint32)


def unpack(words: UInt32[Array, "*batch W"], nodes: int) -> Bool[Array, "*batch M"]:
    """Returns the flags that `pack` packed."""
    place = jnp.arange(WORD, dtype=jnp.uint32).reshape((1,) * words.ndim + (WORD,))
    bits = (words[..., None] >> place) & jnp.uint32(1)
    return bits.astype(bool).reshape(*words.shape[:-1], -1)[..., :nodes]


def _bits(node: Int[Array, "B M"], nodes: int) -> UInt32[Array, "B M W"]:
    word = jnp.arange(-(-nodes // WORD), dtype=jnp.int32)[None, None]
    bit = jnp.uint32(1) << (node % WORD).astype(jnp.uint32)
    return jnp.where((node // WORD)[..., None] == word, bit[..., None], jnp.uint32(0))


def topology(parent: Sequence[int], rank: Sequence[int] | None = None, *, levels: int | None = None) -> Topology:
    """Makes a topology from each node's parent.

    Args:
      parent: of each node, the root first; the root's own entry is 0 or −1.
      rank: of each node among its parent's candidates; by default in the order in which siblings stand.
      levels: room for deeper trees of as many nodes; by default what this one needs.

    Raises:
      ValueError: a node is its own ancestor, has no parent in the tree, or stands before its parent; two siblings have
        one rank; or the tree is deeper than `levels`.
    """
    parent = [int(p) for p in parent]
    if not parent or parent[0] not in (0, -1):
        raise ValueError(f"node 0 must be the root, with parent 0 or -1; got {parent[:1]}")
    for node, above in enumerate(parent[1:], 1):
        if not 0 <= above < len(parent):
            raise ValueError(f"node {node} has no parent in the tree of {len(parent)} nodes: its parent is {above}")
        if above == node or _in_cycle(parent, node):
            raise ValueError(f"node {node} is its own ancestor: the tree has a cycle")
        if above > node:
            raise ValueError(f"node {node} stands before its parent {above}: parents must come first")
    given = [0, *_sibling_order(parent)] if rank is None else [int(r) for r in rank]
    if len(given) != len(parent) or any(r < 0 for r in given):
        raise ValueError(f"rank must be a number from 0 for each of {len(parent)} nodes; got {given}")
    seen: dict[tuple[int, int], int] = {}
    for node, place in enumerate(zip(parent, given, strict=True)):
        if node and seen.setdefault(place, node) != node:
            raise ValueError(f"nodes {seen[place]} and {node} are both child {place[1]} of node {place[0]}")
    depth, reached = np.zeros(len(parent), np.int32), np.eye(len(parent), dtype=bool)
    for node, above in enumerate(parent[1:], 1):
        depth[node] = depth[above] + 1
        reached[node] |= reached[above]
    deepest = int(depth.max())
    if levels is not None and deepest > levels:
        raise ValueError(f"the tree must be at most {levels} levels deep; got {deepest}")
    return Topology(
        parent=jnp.asarray([0, *parent[1:]], jnp.int32),
        depth=jnp.asarray(depth),
        rank=jnp.asarray([0, *given[1:]], jnp.int32),
        ancestors=pack(jnp.asarray(reached)),
        levels=deepest if levels is None else levels,
    )


def tree_from_ranks(paths: Sequence[Sequence[int]], *, levels: int | None = None) -> Topology:
    """Makes a topology from the ranks that lead from the root to each node.

    Args:
      paths: one a node, the root's left out; in any order.
      levels: as in `topology`.

    Raises:
      ValueError: a path's parent is missing, a path is empty or stands twice, or a rank is negative.
    """
    ordered = sorted((tuple(int(r) for r in path) for path in paths), key=lambda path: (len(path), path))
    place: dict[tuple[int, ...], int] = {(): 0}
    parent, rank = [0], [0]
    for path in ordered:
        if path in place:
            raise ValueError(f"the path {list(path)} {'is the root' if not path else 'stands twice'}")
        if path[:-1] not in place:
            raise ValueError(f"the node {list(path)} has no parent: {list(path[:-1])} is not in the tree")
        parent.append(place[path[:-1]])
        rank.append(path[-1])
        place[path] = len(place)
    return topology(parent, rank, levels=levels)


def check_ranks(topology: Topology) -> None:
    """Checks that the siblings below each node have the ranks 0, 1, … in the order in which they stand.

    Raises:
      ValueError: an elder sibling is missing, or stands later.
    """
    place = zip(np.asarray(topology.parent).tolist()[1:], np.asarray(topology.rank).tolist()[1:], strict=True)
    children: dict[int, int] = {}
    for node, (above, rank) in enumerate(place, 1):
        if rank != children.get(above, 0):
            raise ValueError(f"node {node} must be child {children.get(above, 0)} of node {above}; it is child {rank}")
        children[above] = rank + 1


def chain(nodes: int) -> Topology:
    """Makes a chain of this many drafted nodes below the root.

    Raises:
      ValueError: there are none.
    """
    if nodes < 1:
        raise ValueError(f"a chain must have at least 1 node; got {nodes}")
    return topology([0, *range(nodes)])


def is_chain(topology: Topology) -> bool:
    """Returns whether every node hangs below the one before it, so that reading the nodes in order reads the tree."""
    return bool((np.asarray(topology.parent)[1:] == np.arange(topology.nodes - 1)).all())


def _in_cycle(parent: Sequence[int], node: int) -> bool:
    above = parent[node]
    for _ in parent:
        if above == node:
            return True
        if not 0 < above < len(parent):
            return False
        above = parent[above]
    return False


def _sibling_order(parent: Sequence[int]) -> list[int]:
    children: dict[int, int] = {}
    order = []
    for above in parent[1:]:
        order.append(children.get(above, 0))
        children[above] = order[-1] + 1
    return order
