"""The key-value cache: read-only in a forward, written by `commit` alone, after acceptance."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from jax_smash.cache.block import BlockKV
from jax_smash.cache.write import Write, pick, write_entries, write_shares
from jax_smash.pytree import pytree, replace, static
from jax_smash.shapes import round_up
from jax_smash.sharding import on_each_device

EMPTY = 2**30
"""Slot position of an empty slot: after every real position, so comparing positions also hides empty slots."""

ROWS, HEADS = ("batch",), ("batch", "kv_heads")
"""Logical axes of the cache's arrays: of a kind's positions, and of a layer's keys or values."""


@dataclasses.dataclass(frozen=True)
class Sinks:
    """What is kept of a text without end: its first entries, the attention sinks, and a window of the last ones.

    An entry sees the sinks from nearer than they are: as if everything between them and its window were not there.

    Attributes:
      count: entries in front that stay.
      window: last entries that an entry sees, itself included.
    """

    count: int
    window: int

    def place(self, position: Int[Array, "B T"]) -> Int[Array, "B T"]:
        """Returns the place of entries among what they see."""
        return jnp.minimum(position, self.count + self.window - 1)


@pytree
class KVCache:
    """Keys and values of every layer, head-major, with slots that fill in order.

    A full-attention layer has one slot an entry. A sliding layer keeps only as many slots as its window and one block
    need, and starts over at slot 0 when they are used up: what is overwritten has left the window. With sinks, a full
    layer does the same behind them.

    Attributes:
      keys, values: one array a layer, `[B, K, S, H]`; S depends on the layer's kind.
      positions: slot positions, one entry a kind.
      slot_length: entries committed so far, in slots; for a rotating layer this counts overwritten slots too.
      reach: positions that a row's rotary embedding is made for, where that depends on how long the text is (see
        `models.rope`); set before a turn is read. None for all other models.
      kind_of_layer: index into `positions`, a layer.
      starts: of each kind, the slot at which it starts over; None where there is a slot for every entry.
      sinks: what full-attention layers keep; None where they keep everything.
      over: mesh axis whose devices have a share of the slots each, in order; see `divided`. None where all are here.
    """

    keys: tuple[Float[Array, "B K _ H"], ...]
    values: tuple[Float[Array, "B K _ H"], ...]
    positions: tuple[Int[Array, "B _"], ...]
    slot_length: Int[Array, "B"]
    reach: Int[Array, "B"] | None = None
    kind_of_layer: tuple[int, ...] = static()
    starts: tuple[int | None, ...] = static()
    sinks: Sinks | None = static(default=None)
    over: str | None = static(default=None)

    @property
    def slots(self) -> int:
        """Capacity in slots, of the kind that has most."""
        return max(p.shape[1] for p in self.positions)

    @staticmethod
    def axes(shape: tuple[int, ...]) -> tuple[str, ...]:
        """Returns the logical axes of one of the cache's arrays, known by its shape."""
        return HEADS if len(shape) == 4 else ROWS

    def layer(self, layer: int) -> "LayerCache":
        """Returns what one layer's attention reads."""
        kind = self.kind_of_layer[layer]
        return LayerCache(
            keys=self.keys[layer],
            values=self.values[layer],
            position=self.positions[kind],
            sinks=self.sinks if self.sinks and self.starts[kind] == self.sinks.count else None,
            over=self.over,
        )

    @jax.named_scope("commit")
    def commit(self, block_kv: BlockKV, write: Write) -> "KVCache":
        """Writes entries behind what each row already holds.

        Args:
          block_kv: keys and values of the forward.
          write: which of its entries.
        """
        position, count = write.position, write.count
        if write.path is not None:
            block_kv = jax.tree.map(functools.partial(pick, path=write.path), block_kv)
            position = pick(position, write.path)
        layers = len(self.keys)
        arrays = (*self.keys, *self.values, *(p[:, None, :, None] for p in self.positions))
        keys, values = zip(*block_kv, strict=True)
        entries = (*keys, *values)
        entries = (*entries, *(position[:, :, None, None] for _ in self.positions))
        by_layer = [self.starts[kind] for kind in self.kind_of_layer]
        starts = (*by_layer, *by_layer, *self.starts)
        write_all = functools.partial(write_entries, starts=starts)
        if self.over is not None:
            write_all = functools.partial(write_shares, starts=starts, over=self.over)
        # A device has all that its rows and heads need: left to itself, XLA would gather the cache to index its rows.
        written = on_each_device(
            write_all, (arrays, HEADS), (entries, ("batch", None, "kv_heads")), (self.slot_length, ROWS), (count, ROWS)
        )
        return replace(
            self,
            keys=written[:layers],
            values=written[layers : 2 * layers],
            positions=tuple(p[:, 0, :, 0] for p in written[2 * layers :]),
            slot_length=self.slot_length + count,
        )


@pytree
class LayerCache:
    """One layer's view of the cache.

    Attributes:
      keys, values: committed entries.
      position: position of each slot, `EMPTY` where nothing was written.
      sinks: the first slots hold sinks; None where all slots are alike.
      over: mesh axis whose devices have a share of the slots each; None where all are here.
    """

    keys: Float[Array, "B K S H"]
    values: Float[Array, "B K S H"]
    position: Int[Array, "B S"]
    sinks: Sinks | None = static(default=None)
    over: str | None = static(default=None)

    def front(self) -> "LayerCache":
        """Returns the sinks, as slots like others."""
        assert self.sinks is not None
        count = self.sinks.count
        return LayerCache(
            keys=self.keys[:, :, :count], values=self.values[:, :, :count], position=self.position[:, :count]
        )

    def behind(self) -> "LayerCache":
        """Returns all slots, as if nothing were in the sinks."""
        assert self.sinks is not None
        hidden = jnp.arange(self.position.shape[1], dtype=jnp.int32) < self.sinks.count
        return replace(self, position=jnp.where(hidden[None], jnp.int32(EMPTY), self.position), sinks=None)

    def piece(self, start: Int[Array, ""], slots: int) -> "LayerCache":
        """Returns some of the slots."""
        cut = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=slots)
        return LayerCache(
            keys=cut(self.keys, axis=2), values=cut(self.values, axis=2), position=cut(self.position, axis=1)
        )


def divided(cache: KVCache, over: str, devices: int) -> KVCache:
    """Returns a cache whose slots a `shard_map` divides over a mesh axis, for texts longer than a device holds.

    Within the `shard_map` all devices of the axis run the same forward: each attends to its own slots, the parts of the
    softmax are merged, and each commits what falls into its slots. `specs` says how the arrays lie.

    Args:
      cache: a whole one.
      over: the axis, which divides nothing else.
      devices: along it.

    Raises:
      ValueError: a kind's slots are not divisible by the devices, or the cache keeps sinks.
    """
    if cache.sinks is not None:
        raise ValueError("a cache that is divided by slots must keep no sinks")
    for position in cache.positions:
        if position.shape[1] % devices:
            raise ValueError(f"slots must be divisible by the {devices} devices of {over}; got {position.shape[1]}")
    return replace(cache, over=over)


def specs(cache: KVCache) -> KVCache:
    """Returns how the arrays of a divided cache lie on its mesh axis: a `PartitionSpec` in the place of each."""

    def of_array(x: Array) -> PartitionSpec:
        # Keys and values have their slots behind the KV heads, positions behind the rows.
        return PartitionSpec(*(None,) * (x.ndim // 2), cache.over) if x.ndim > 1 else PartitionSpec()

    return jax.tree.map(of_array, cache)


def init_cache(
    *,
    kinds: tuple[str, ...],
    layer_kinds: tuple[str, ...],
    window: int,
    batch: int,
    slots: int,
    block: int,
    num_kv_heads: int,
    head_width: int,
    dtype: Any,
    follows_length: bool = False,
    sinks: Sinks | None = None,
) -> KVCache:
    """Makes an empty cache.

    Args:
      kinds: the attention kinds that occur.
      layer_kinds: the kind of each layer.
      window: of sliding layers, in positions.
      batch: rows.
      slots: capacity in slots.
      block: the most entries that one commit writes; a rotating layer keeps room for them.
      num_kv_heads, head_width, dtype: of each entry.
      follows_length: the model's rotary embedding depends on how long the text is.
      sinks: full-attention layers keep no more than this; None keeps everything.
    """
    capacity = {"full": slots, "sliding": min(slots, round_up(max(window, block), 16))}
    starts: dict[str, int | None] = {"full": None, "sliding": 0}
    if sinks is not None:
        capacity["full"] = min(slots, round_up(sinks.count + max(sinks.window, block), 16))
        starts["full"] = sinks.count

    def array(kind: str) -> Array:
        return jnp.zeros((batch, num_kv_heads, capacity[kind], head_width), dtype)

    return KVCache(
        keys=tuple(array(kind) for kind in layer_kinds),
        values=tuple(array(kind) for kind in layer_kinds),
        positions=tuple(jnp.full((batch, capacity[kind]), EMPTY, jnp.int32) for kind in kinds),
        slot_length=jnp.zeros((batch,), jnp.int32),
        reach=jnp.zeros((batch,), jnp.int32) if follows_length else None,
        kind_of_layer=tuple(kinds.index(kind) for kind in layer_kinds),
        starts=tuple(starts[kind] for kind in kinds),
        sinks=sinks,
    )


def reaching(tree: Any, reach: Int[Array, "B"]) -> Any:
    """Returns a tree whose caches have another reach, where they have one; each gets an array of its own to donate."""

    def each(node: Any) -> Any:
        if not isinstance(node, KVCache) or node.reach is None:
            return node
        return replace(node, reach=jnp.copy(reach))

    return jax.tree.map(each, tree, is_leaf=lambda node: isinstance(node, KVCache))
