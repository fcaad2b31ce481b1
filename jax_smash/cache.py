"""The key-value cache: read-only in a forward, written by `commit` alone, after acceptance."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jax_smash.pytree import pytree, replace, static
from jax_smash.shapes import round_up

EMPTY = 2**30
"""Slot position of an empty slot: after every real position, so comparing positions also hides empty slots."""

FEW_WRITES = 8
"""Entries a layer up to which single writes beat one scatter."""

BlockKV = tuple[tuple[Any, Any], ...]
"""Keys and values that a forward made, a pair a layer, each `[B, T, K, H]`."""


@pytree
class Block:
    """How the T entries of one forward see each other.

    Attributes:
      valid: False at padding, which nothing sees and nothing commits.
      ancestors: bit j of entry i is set where entry i sees entry j, itself included, packed 32 to a word; None means
        causal.
      segments: entries see only entries of their own segment (documents packed in a row); None where all are one.
    """

    valid: Bool[Array, "B T"]
    ancestors: UInt32[Array, "B T W"] | None = None
    segments: Int[Array, "B T"] | None = None

    @classmethod
    def causal(cls, valid: Bool[Array, "B T"], segments: Int[Array, "B T"] | None = None) -> "Block":
        """Makes a block in which each entry sees itself and the entries before it, in its own segment."""
        return cls(valid=valid, ancestors=None, segments=segments)

    def mask(self) -> Bool[Array, "B T T"]:
        """Returns which entry (last axis) each entry (middle axis) sees."""
        width = self.valid.shape[1]
        if self.ancestors is None:
            seen = jnp.tril(jnp.ones((width, width), bool))[None]
        else:
            entry = jnp.arange(width, dtype=jnp.uint32)
            words = self.ancestors[:, :, entry // 32]
            seen = ((words >> (entry % 32)) & 1).astype(bool)
        if self.segments is not None:
            seen &= self.segments[:, :, None] == self.segments[:, None, :]
        return seen & self.valid[:, None, :]


@pytree
class KVCache:
    """Keys and values of every layer, head-major, with slots that fill in order.

    A full-attention layer has one slot an entry. A sliding layer keeps only as many slots as its window and one block
    need, and starts over at slot 0 when they are used up: what is overwritten has left the window.

    Attributes:
      keys, values: one array a layer, `[B, K, S, H]`; S depends on the layer's kind.
      positions: slot positions, one entry a kind.
      slot_length: entries committed so far, in slots; for a rotating layer this counts overwritten slots too.
      kind_of_layer: index into `positions`, a layer.
    """

    keys: tuple[Float[Array, "B K _ H"], ...]
    values: tuple[Float[Array, "B K _ H"], ...]
    positions: tuple[Int[Array, "B _"], ...]
    slot_length: Int[Array, "B"]
    kind_of_layer: tuple[int, ...] = static()

    @property
    def slots(self) -> int:
        """Capacity in slots, of the kind that has most."""
        return max(p.shape[1] for p in self.positions)

    def layer(self, layer: int) -> "LayerCache":
        """Returns what one layer's attention reads."""
        return LayerCache(
            keys=self.keys[layer], values=self.values[layer], position=self.positions[self.kind_of_layer[layer]]
        )

    def commit(
        self,
        block_kv: BlockKV,
        position: Int[Array, "B T"],
        count: Int[Array, "B"],
        path: Int[Array, "B P"] | None = None,
    ) -> "KVCache":
        """Writes the first `count` entries of `path` behind what each row already holds.

        The caller makes `count` depend on the logits (`after`), so that every read of the cache comes before the
        write and XLA can write in place. The caller has checked the capacity.

        Args:
          block_kv: keys and values of the forward.
          position: position of each entry.
          count: entries to write a row, at most P.
          path: which entries, in order; None takes entries from the front.
        """
        if path is not None:
            block_kv = tuple((_pick(k, path), _pick(v, path)) for k, v in block_kv)
            position = jnp.take_along_axis(position, path, axis=1)
        offset = jnp.arange(position.shape[1], dtype=jnp.int32)[None]
        written = offset < count[:, None]
        target = []
        for kind_position in self.positions:
            slots = kind_position.shape[1]
            slot = (self.slot_length[:, None] + offset) % slots
            target.append(jnp.where(written, slot, slots))
        keys, values = [], []
        for layer, (key, value) in enumerate(block_kv):
            slot = target[self.kind_of_layer[layer]]
            keys.append(_write(self.keys[layer], key, slot))
            values.append(_write(self.values[layer], value, slot))
        rows = jnp.arange(position.shape[0])[:, None]
        return replace(
            self,
            keys=tuple(keys),
            values=tuple(values),
            positions=tuple(
                p.at[rows, slot].set(position, mode="drop") for p, slot in zip(self.positions, target, strict=True)
            ),
            slot_length=self.slot_length + count,
        )


@pytree
class LayerCache:
    """One layer's view of the cache.

    Attributes:
      keys, values: committed entries.
      position: position of each slot, `EMPTY` where nothing was written.
    """

    keys: Float[Array, "B K S H"]
    values: Float[Array, "B K S H"]
    position: Int[Array, "B S"]


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
    """
    capacity = {
        "full": slots,
        "sliding": min(slots, round_up(max(window, block), 16)),
    }

    def array(kind: str) -> Array:
        return jnp.zeros((batch, num_kv_heads, capacity[kind], head_width), dtype)

    return KVCache(
        keys=tuple(array(kind) for kind in layer_kinds),
        values=tuple(array(kind) for kind in layer_kinds),
        positions=tuple(jnp.full((batch, capacity[kind]), EMPTY, jnp.int32) for kind in kinds),
        slot_length=jnp.zeros((batch,), jnp.int32),
        kind_of_layer=tuple(kinds.index(kind) for kind in layer_kinds),
    )


def after(count: Int[Array, "B"], evidence: Int[Array, "B"] | Float[Array, "B"]) -> Int[Array, "B"]:
    """Returns `count` unchanged, but known only once `evidence` is: tokens (at least 0), or numbers from the logits.

    A write that could run before the attention has read the cache makes XLA copy the cache. An optimisation barrier is
    no help: it is gone when copies are inserted. So where the write goes is made to depend on what was read.
    """
    impossible = jnp.isnan(evidence) if jnp.issubdtype(evidence.dtype, jnp.floating) else evidence < 0
    return jnp.where(impossible, 0, count)


def _pick(entries: Float[Array, "B T K H"], path: Int[Array, "B P"]) -> Float[Array, "B P K H"]:
    return jnp.take_along_axis(entries, path[:, :, None, None], axis=1)


def _write(
    cache: Float[Array, "B K S H"], entries: Float[Array, "B P K H"], slot: Int[Array, "B P"]
) -> Float[Array, "B K S H"]:
    """Writes each entry into its slot; a slot past the end is dropped."""
    batch, width = slot.shape
    if batch * width <= FEW_WRITES:
        return _write_one_by_one(cache, entries, slot)
    rows = jnp.arange(batch)[:, None]
    # The advanced indices stand apart, so their axes come first: [B, P, K, H], as the entries are.
    return cache.at[rows, :, slot].set(entries.astype(cache.dtype), mode="drop")


def _write_one_by_one(
    cache: Float[Array, "B K S H"], entries: Float[Array, "B P K H"], slot: Int[Array, "B P"]
) -> Float[Array, "B K S H"]:
    last = cache.shape[2] - 1
    for row in range(slot.shape[0]):
        for i in range(slot.shape[1]):
            start = (row, 0, jnp.minimum(slot[row, i], last), 0)
            entry = entries[row, i].astype(cache.dtype)[None, :, None]
            held = jax.lax.dynamic_slice(cache, start, entry.shape)
            cache = jax.lax.dynamic_update_slice(cache, jnp.where(slot[row, i] > last, held, entry), start)
    return cache
