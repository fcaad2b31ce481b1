"""Draft trees: the tokens that a drafter proposes in one step, and the shapes of trees."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt32

from jax_smash.cache import Block
from jax_smash.pytree import pytree, replace, static
from jax_smash.sharding import on_each_device

WORD = 32
"""Ancestor bits in a word."""


@pytree
class Topology:
    """The shape of a tree, the same for every row: node 0 is the root, and a parent stands before its children.

    Only the number of nodes and the number of levels are compiled in; parents, depths and ranks are traced.

    Attributes:
      parent: of each node; the root is its own.
      depth: edges from the root.
      rank: of each node among its parent's candidates, 0 for the likeliest; 0 at the root.
      ancestors: bit j of node i is set where node j lies on the path from the root to node i, both included.
      levels: an upper bound on the depth of a node; deeper nodes, if there are any, are not drafted.
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
    """Proposed tokens, one tree per row. Node 0 is the pending token of the row.

    Attributes:
      token: of each node; anything where a node is not valid.
      parent: of each node; the root is its own.
      depth: edges from the root.
      valid: False where nothing is proposed; a valid node's ancestors are valid.
      ancestors: packed bits, as in `Topology`.
      proposal: the distribution that the children of each node were drawn from; None where children are deterministic.
      rank: of each node among its parent's candidates, 0 for the likeliest; None where the order of siblings gives it.
      levels: an upper bound on the depth of a node.
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
        """Returns the tokens on the path from the root (left out) to each node (included), padded with −1."""
        return along_paths(self.ancestors, self.depth, self.token, levels=self.levels)

    def first(self, nodes: int) -> "DraftTree":
        """Returns the tree of the first nodes. Parents stand before their children, so it is one."""
        return DraftTree(
            token=self.token[:, :nodes],
            parent=self.parent[:, :nodes],
            depth=self.depth[:, :nodes],
            valid=self.valid[:, :nodes],
            ancestors=self.ancestors[:, :nodes, : -(-nodes // WORD)],
            proposal=None if self.proposal is None else self.proposal[:, :nodes],
            rank=None if self.rank is None else self.rank[:, :nodes],
            levels=self.levels,
        )

    def valid_first(self) -> "DraftTree":
        """Returns the tree with its invalid nodes behind the valid ones; the order of each of both stays."""
        count, index = self.valid.sum(1, dtype=jnp.int32)[:, None], jnp.arange(self.valid.shape[1], dtype=jnp.int32)
        here = jnp.cumsum(self.valid, axis=1, dtype=jnp.int32) - 1
        behind = count + jnp.cumsum(~self.valid, axis=1, dtype=jnp.int32) - 1
        place = jnp.where(self.valid, here, behind)
        node = jnp.argmax(place[:, None] == index[None, :, None], axis=2).astype(jnp.int32)
        seen = unpack(self.ancestors, self.valid.shape[1])
        seen = jnp.take_along_axis(jnp.take_along_axis(seen, node[:, :, None], axis=1), node[:, None], axis=2)
        return DraftTree(
            token=at_nodes(self.token, node),
            parent=at_nodes(place, at_nodes(self.parent, node)),
            depth=at_nodes(self.depth, node),
            valid=index[None] < count,
            ancestors=pack(seen),
            proposal=None if self.proposal is None else jnp.take_along_axis(self.proposal, node[:, :, None], axis=1),
            rank=None if self.rank is None else at_nodes(self.rank, node),
            levels=self.levels,
        )

    def padded(self, multiple: int) -> "DraftTree":
        """Returns the tree with invalid nodes behind its own, up to a multiple of this many; a root stays alone."""
        nodes = self.token.shape[1]
        room = -nodes % multiple if nodes > 1 else 0
        if not room:
            return self

        def pad(values: Array) -> Array:
            return jnp.pad(values, [(0, 0), (0, room)] + [(0, 0)] * (values.ndim - 2))

        own = jnp.broadcast_to(jnp.arange(nodes, nodes + room, dtype=jnp.int32), (self.token.shape[0], room))
        words = -(-(nodes + room) // WORD)
        seen = jnp.pad(self.ancestors, ((0, 0), (0, 0), (0, words - self.ancestors.shape[2])))
        return DraftTree(
            token=pad(self.token),
            parent=pad(self.parent),
            depth=pad(self.depth),
            valid=pad(self.valid),
            ancestors=jnp.concatenate([seen, _bits(own, nodes + room)], axis=1),
            proposal=None if self.proposal is None else pad(self.proposal),
            rank=None if self.rank is None else jnp.pad(self.rank, ((0, 0), (0, room)), constant_values=-1),
            levels=self.levels,
        )


def grow(topology: Topology, token: Int[Array, "B M"]) -> DraftTree:
    """Returns a tree of this topology with these tokens. A node with a negative token and all below it are invalid."""
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
      parent: index of each node's parent, lower than the node's own; 0 at the root.
      valid: False where nothing is proposed; the nodes below such a node become invalid too.
      levels: an upper bound on the depth of a node.
    """
    nodes = token.shape[1]
    node = jnp.arange(nodes, dtype=jnp.int32)[None, None]
    seen = (parent[:, :, None] == node) | (node == node.swapaxes(1, 2))
    # What is reached in up to n steps, taken twice, is what is reached in up to 2n.
    for _ in range(levels.bit_length()):
        reached = seen.astype(jnp.float32)
        seen = jnp.einsum("BMI,BIN->BMN", reached, reached) > 0
    tree = DraftTree(
        token=jnp.maximum(token, 0),
        parent=parent,
        depth=seen.sum(-1, dtype=jnp.int32) - 1,
        valid=valid,
        ancestors=pack(seen),
        levels=levels,
    )
    return replace(tree, valid=all_ancestors(valid.at[:, 0].set(True), tree.ancestors))


def along_paths(
    ancestors: UInt32[Array, "B M W"], depth: Int[Array, "B M"], values: Int[Array, "B M"], *, levels: int
) -> Int[Array, "B M levels"]:
    """Returns the values of the nodes on the path from the root (left out) to each node (included), padded with −1.

    Args:
      ancestors, depth: as in `DraftTree`.
      values: of each node, from 0 to 2²⁴ − 2.
      levels: an upper bound on the depth of a node.
    """
    level = jnp.arange(1, levels + 1, dtype=jnp.int32)[None, None]
    at_level = jnp.where(depth[:, :, None] == level, values[:, :, None] + 1, 0).astype(jnp.float32)
    on_path = unpack(ancestors, depth.shape[1]).astype(jnp.float32)
    # A path has one node a level, so a sum has one term, which float32 holds exactly.
    found = jnp.einsum("BMN,BNL->BML", on_path, at_level, precision=jax.lax.Precision.HIGHEST)
    return found.astype(jnp.int32) - 1


def at_nodes(values: Shaped[Array, "B M"], node: Int[Array, "B *n"]) -> Shaped[Array, "B *n"]:
    """Returns each row's values at its nodes.

    They are compared and summed, not gathered: of arrays as small as a tree's a TPU takes longer over a gather.
    """
    ones = [1] * (node.ndim - 1)
    index = jnp.arange(values.shape[1], dtype=jnp.int32).reshape(1, *ones, -1)
    every = values.reshape(values.shape[0], *ones, -1)
    return jnp.where(node[..., None] == index, every, 0).sum(-1, dtype=values.dtype)


def vectors_at(values: Float[Array, "B M V"], node: Int[Array, "B"]) -> Float[Array, "B 1 V"]:
    """Returns each row's vector at its node."""

    def at_once(values: Array, node: Array) -> Array:
        return jnp.take_along_axis(values, node[:, None, None], axis=1)

    def row_by_row(values: Array, node: Array) -> Array:
        def read(row: Array) -> Array:
            start = (row, node[row], jnp.zeros_like(row))
            return jax.lax.dynamic_slice(values, start, (1, 1, values.shape[2]))[0]

        return jax.lax.map(read, jnp.arange(len(node), dtype=node.dtype))

    def of_share(values: Array, node: Array) -> Array:
        # Of vectors as long as a vocabulary a TPU's gather reads those of all nodes.
        return jax.lax.platform_dependent(values, node, tpu=row_by_row, default=at_once)

    return on_each_device(of_share, (values, ("batch", None, "vocab")), (node, ("batch",)))


def all_ancestors(marked: Bool[Array, "B M"], ancestors: UInt32[Array, "B M W"]) -> Bool[Array, "B M"]:
    """Marks the nodes that are marked themselves and whose ancestors are all marked."""
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
      rank: of each node among its parent's candidates; by default the order of the siblings.
      levels: the depth to compile for, to leave room for deeper trees; by default the depth of this tree.

    Raises:
      ValueError: a node is its own ancestor, has no parent in the tree, or comes before its parent; two siblings have
        the same rank; or the tree is deeper than `levels`.
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
      paths: one for each node except the root, in any order.
      levels: as in `topology`.

    Raises:
      ValueError: the parent of a path is missing, a path is empty or occurs twice, or a rank is negative.
    """
    ordered = sorted((tuple(int(r) for r in path) for path in paths), key=lambda path: (len(path), path))
    return tree_in_order(ordered, levels=levels)


def tree_in_order(paths: Sequence[tuple[int, ...]], *, levels: int | None = None) -> Topology:
    """Makes a topology as `tree_from_ranks` does, whose nodes stand in the order of the paths.

    Raises:
      ValueError: as `tree_from_ranks` says, or a path stands before its parent's.
    """
    place: dict[tuple[int, ...], int] = {(): 0}
    parent, rank = [0], [0]
    for path in paths:
        if path in place:
            raise ValueError(f"the path {list(path)} {'is the root' if not path else 'stands twice'}")
        if path[:-1] not in place:
            raise ValueError(f"the node {list(path)} has no parent: {list(path[:-1])} is not in the tree before it")
        parent.append(place[path[:-1]])
        rank.append(path[-1])
        place[path] = len(place)
    return topology(parent, rank, levels=levels)


def check_ranks(topology: Topology) -> None:
    """Checks that the children of each node have the ranks 0, 1, … in their order.

    Raises:
      ValueError: a sibling of lower rank is missing or comes later.
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
      ValueError: `nodes` is less than 1.
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
