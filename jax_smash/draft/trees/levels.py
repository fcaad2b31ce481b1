"""The levels of a tree: a drafter that makes a forward for each reads every node once."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jax_smash.cache import Block, Earlier
from jax_smash.draft.trees.tree import DraftTree, Topology, pack, unpack
from jax_smash.pytree import pytree, static


@pytree
class Levels:
    """A tree's nodes in the order of their depth, in which a drafter reads them.

    Entries that the drafter has read and that are in no cache yet are kept as `Earlier`: first those that stand before
    the root, as many as the drafter has, then the nodes by `place`. Behind the last that was read there is only room.

    Attributes:
      order: the nodes; behind the last, the root again for as many as a level has room for.
      place: of each node in this order.
      first: place of each depth's first node, and the number of nodes.
      room: nodes of the widest level that is read, or more.
    """

    order: Int[Array, "all"]
    place: Int[Array, "M"]
    first: Int[Array, "depths"]
    room: int = static()

    @classmethod
    def of(cls, topology: Topology, room: int) -> "Levels":
        """Orders a tree's nodes."""
        nodes = topology.nodes
        before = topology.depth[None] < jnp.arange(topology.levels + 2, dtype=jnp.int32)[:, None]
        order = jnp.argsort(topology.depth, stable=True).astype(jnp.int32)
        place = jnp.zeros((nodes,), jnp.int32).at[order].set(jnp.arange(nodes, dtype=jnp.int32))
        first = before.sum(1, dtype=jnp.int32)
        return cls(order=jnp.pad(order, (0, room)), place=place, first=first, room=room)

    def at(self, depth: Int[Array, ""]) -> tuple[Int[Array, "room"], Bool[Array, "room"]]:
        """Returns the nodes of a depth, and which of as many as there is room for there are."""
        first = self.first[depth]
        there = jnp.arange(self.room, dtype=jnp.int32) < self.first[depth + 1] - first
        return jax.lax.dynamic_slice_in_dim(self.order, first, self.room), there

    def within(self, node: Int[Array, "n"], depth: Int[Array, ""], nodes: int) -> Int[Array, "n"]:
        """Returns the index of each node among those of a depth, the nearest one for a node of another depth.

        Args:
          node: of the tree.
          depth: that is looked at.
          nodes: that indices are below.
        """
        return jnp.clip(self.place[node] - self.first[depth], 0, nodes - 1)

    def with_room(self, read: Earlier) -> Earlier:
        """Returns what was read up to the root, with room for all nodes behind it."""
        room = len(self.order) - 1
        return jax.tree.map(lambda x: jnp.pad(x, [(0, 0), (0, room)] + [(0, 0)] * (x.ndim - 2)), read)

    def with_level(self, read: Earlier, new: Earlier, depth: Int[Array, ""]) -> Earlier:
        """Returns what was read with the nodes of one more depth."""
        start = read.position.shape[1] - len(self.order) + self.first[depth]
        return jax.tree.map(lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, start, axis=1), read, new)

    def block(self, tree: DraftTree, depth: Int[Array, ""], before: Bool[Array, "B n"], read: Earlier) -> Block:
        """Returns what the nodes of a depth see: all that stands before the root, their ancestors, and themselves.

        Args:
          tree: drafted up to this depth.
          depth: of the nodes that are read next.
          before: marks the entries before the root that there are.
          read: what was read.
        """
        node, there = self.at(depth)
        batch = before.shape[0]
        # From this depth on there is only room.
        known = (jnp.arange(len(self.order), dtype=jnp.int32) < self.first[depth])[None] & tree.valid[:, self.order]
        valid = jnp.concatenate([before, known, tree.valid[:, node] & there[None]], axis=1)
        ancestor = unpack(tree.ancestors, tree.token.shape[1])[:, node][:, :, self.order]
        itself = jnp.broadcast_to(jnp.eye(self.room, dtype=bool), (batch, self.room, self.room))
        everything = jnp.ones((batch, self.room, before.shape[1]), bool)
        ancestors = pack(jnp.concatenate([everything, ancestor, itself], axis=2))
        return Block(valid=valid, ancestors=ancestors, earlier=read)

    def with_children(
        self, topology: Topology, token: Int[Array, "B M"], depth: Int[Array, ""], children: Int[Array, "B A k"]
    ) -> Int[Array, "B M"]:
        """Returns the tree's tokens with the children of a depth's nodes; a rank that has no child stays as it is.

        Args:
          topology: of the tree.
          token: of each node.
          depth: of the parents.
          children: of each parent, by rank.
        """
        parents, width = children.shape[1:]
        below = (topology.depth == depth + 1) & (topology.rank < width)
        drawn = children[:, self.within(topology.parent, depth, parents), topology.rank % width]
        return jnp.where(below[None], drawn, token)
