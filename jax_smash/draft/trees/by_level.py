"""Trees of drafters that read a level before they draft the next: of the shape that is asked for, or as they grow."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Block, Earlier
from jax_smash.draft.trees.best_first import Beam, Found, grow_by
from jax_smash.draft.trees.confident import Confident
from jax_smash.draft.trees.levels import Levels
from jax_smash.draft.trees.tree import DraftTree, Topology, grow, pack
from jax_smash.pytree import pytree
from jax_smash.sampling import Likeliest


@pytree
class Made:
    """What a drafter made of nodes of one depth.

    Attributes:
      hidden: what their children are drafted from.
      feature: what is read beside each child's own token; None where nothing is.
    """

    hidden: Float[Array, "B A D"]
    feature: Float[Array, "B A D"] | None


@dataclasses.dataclass(frozen=True)
class Reader:
    """What a tree is drafted with.

    Attributes:
      pending: the root's token.
      before: marks the entries up to the root's, which is the last of them.
      top, entries: what was made of the root's entry, and what was read of all of them.
      levels: no node is deeper.
      read: reads nodes of a depth: from the tokens on the path to each, padded with −1, and its parent's feature.
      children: the likeliest tokens behind nodes of a depth, from what was made of these and the tokens on their
        paths, and their probabilities where asked for; −1 is no token.
    """

    pending: Int[Array, "B"]
    before: Bool[Array, "B E"]
    top: Made
    entries: Earlier
    levels: int
    read: Callable[[Int[Array, "B A levels"], Any, Int[Array, ""], Block], tuple[Made, Earlier]]
    children: Callable[[Float[Array, "B A D"], Int[Array, "B A levels"], Int[Array, ""]], Found]


@pytree
class Growing:
    """A tree while it is drafted.

    Attributes:
      token: of each node; −1 where nothing is drafted.
      read: what the drafter made of the entries before the root's and of the nodes so far.
      feature: of the nodes of the depth that was read last.
    """

    token: Int[Array, "B M"]
    read: Earlier
    feature: Float[Array, "B room D"] | None


@dataclasses.dataclass(frozen=True)
class FixedTrees:
    """Trees of the shape that is asked for.

    Attributes:
      width: children that a node has at most.
      room: nodes of one depth at most, the deepest left out.
    """

    width: int = 1
    room: int = 1

    weighed = False
    """Probabilities are not asked for."""

    least = 0.0
    """Trees have the nodes that are asked for."""

    branches = False
    """Drafts branch where the topology does alone."""

    def grow(self, reader: Reader, topology: Topology) -> DraftTree:
        """Returns the tree, with nodes down to the level of the topology or of the drafter that comes first."""
        nodes = topology.nodes
        levels = Levels.of(topology, min(self.room, nodes))
        token = jnp.where((topology.depth > 0)[None], -1, reader.pending[:, None])
        forwards = min(topology.levels, nodes - 1, reader.levels)
        if not forwards:
            return grow(topology, token)

        def with_children(token: Array, made: Made, path: Array, depth: Array) -> Int[Array, "B M"]:
            return levels.with_children(topology, token, depth, reader.children(made.hidden, path, depth)[0])

        def level(growing: Growing, depth: Int[Array, ""]) -> tuple[Growing, None]:
            tree, (node, _) = grow(topology, growing.token), levels.at(depth)
            # Each node goes on from what was made of its parent.
            above = levels.within(topology.parent[node], depth - 1, levels.room)
            feature = jax.tree.map(lambda x: x[:, above], growing.feature)
            block = levels.block(tree, depth, reader.before[:, :-1], growing.read)
            path = tree.paths()[:, node]
            made, new = reader.read(path, feature, depth, block)
            token, read = with_children(growing.token, made, path, depth), levels.with_level(growing.read, new, depth)
            return Growing(token=token, read=read, feature=made.feature), None

        token = with_children(token, reader.top, grow(topology, token).paths()[:, :1], jnp.int32(0))
        feature = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, levels.room - 1), (0, 0))), reader.top.feature)
        growing = Growing(token=token, read=levels.with_room(reader.entries), feature=feature)
        growing, _ = jax.lax.scan(level, growing, jnp.arange(1, forwards, dtype=jnp.int32))
        return grow(topology, growing.token)


@pytree
class Read:
    """What the drafter has read of a tree that grows.

    Attributes:
      read: what it made of the entries up to the root's, and behind them of each level's beam.
      seen: which of these each node of the last beam sees, itself included.
      feature: of these nodes.
      path: tokens from the root to each of them, padded with −1.
    """

    read: Earlier
    seen: Bool[Array, "B A all"]
    feature: Float[Array, "B A D"] | None
    path: Int[Array, "B A levels"]


@dataclasses.dataclass(frozen=True)
class ConfidentTrees:
    """Trees that grow where the drafter is most certain.

    Source: Li et al. 2024, "EAGLE-2", section 4, of EAGLE's layer.
    Differs: probabilities are those after logits processors. Where rows sample, they are also those after the noise of
    the target's choice, which the drafted tokens are chosen with.

    Attributes:
      sizes: of the trees.
    """

    sizes: Confident

    weighed = True
    """Probabilities are asked for."""

    @property
    def width(self) -> int:
        """Children that a node has at most."""
        return self.sizes.width

    @property
    def least(self) -> float:
        """The probability below which nothing is drafted."""
        return self.sizes.least

    @property
    def branches(self) -> bool:
        """Drafts may branch, whatever the topology."""
        return self.sizes.branches

    def grow(self, reader: Reader, topology: Topology) -> DraftTree:
        """Returns the tree, with the topology's nodes, and its levels at most."""
        nodes, levels, width = topology.nodes, min(topology.levels, reader.levels), self.sizes.width
        batch, unread = reader.before.shape
        forwards = max(min(levels, nodes - 1) - 1, 0)
        if nodes == 1:
            return grow(topology, reader.pending[:, None])
        entry = jnp.arange(unread + forwards * width, dtype=jnp.int32)

        def expand(carry: Read, beam: Beam, depth: Int[Array, ""]) -> tuple[Read, Found]:
            first = unread + (depth - 1) * width
            feature, seen, path = jax.tree.map(
                lambda x: jnp.take_along_axis(x, beam.above[:, :, None], axis=1),
                (carry.feature, carry.seen, carry.path),
            )
            path = path.at[:, :, depth - 1].set(beam.token)
            there = (beam.product >= 0) & (beam.token >= 0)
            itself = jnp.broadcast_to(jnp.eye(width, dtype=bool), (batch, width, width))
            # What lies behind the last that was read is room.
            known = jnp.pad(reader.before, ((0, 0), (0, len(entry) - unread)), constant_values=True)
            known &= (entry < first)[None]
            block = Block(
                valid=jnp.concatenate([known, there], axis=1),
                ancestors=pack(jnp.concatenate([seen, itself], axis=2)),
                earlier=carry.read,
            )
            made, new = reader.read(path, feature, depth, block)
            carry = Read(
                read=jax.tree.map(
                    lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, first, axis=1), carry.read, new
                ),
                seen=seen | (entry[None] == first + jnp.arange(width, dtype=jnp.int32)[:, None])[None],
                feature=made.feature,
                path=path,
            )
            return carry, reader.children(made.hidden, path, depth)

        none = jnp.full((batch, 1, levels), -1, jnp.int32)
        carry = Read(
            read=jax.tree.map(
                lambda x: jnp.pad(x, [(0, 0), (0, forwards * width)] + [(0, 0)] * (x.ndim - 2)), reader.entries
            ),
            seen=jnp.broadcast_to(entry < unread, (batch, width, len(entry))),
            feature=jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, width, x.shape[2])), reader.top.feature),
            path=jnp.broadcast_to(none, (batch, width, levels)),
        )
        first = reader.children(reader.top.hidden, none, jnp.int32(0))
        return grow_by(
            reader.pending,
            first,
            expand,
            carry,
            nodes=nodes,
            levels=levels,
            beam=width,
            chain=self.sizes.chain,
            least=self.sizes.least,
        )


class ByLevel:
    """What the trees of a drafter say of its drafts."""

    trees: FixedTrees | ConfidentTrees

    @property
    def least(self) -> float:
        """The probability below which nothing is drafted; 0 where trees have the nodes that are asked for."""
        return self.trees.least

    @property
    def varies(self) -> bool:
        """Trees may have fewer valid nodes than are asked for."""
        return self.trees.least > 0

    @property
    def branches(self) -> bool:
        """Drafts may branch, whatever the topology."""
        return self.trees.branches


def tokens_and_probabilities(found: Likeliest, wanted: Bool[Array, "B"]) -> Found:
    """Returns what a head said; no token where it is impossible or a row wants none.

    Args:
      found: of each node. Without the sum of everything, what stands for probabilities is in the order of these alone.
      wanted: of each row.
    """
    child = jnp.where((found.values > -jnp.inf) & wanted[:, None, None], found.tokens, -1)
    total = jnp.zeros(child.shape[:2], jnp.float32) if found.total is None else found.total
    return child, jnp.exp(found.values - total[:, :, None])


def where_wanted(wanted: Bool[Array, "B"], make: Callable[[], Found]) -> Found:
    """Returns what is made, or no token at all where no row wants any: then nothing is computed."""
    token, probability = jax.eval_shape(make)
    nothing = jnp.full(token.shape, -1, token.dtype), jnp.zeros(probability.shape, probability.dtype)
    return jax.lax.cond(wanted.any(), make, lambda: nothing)
