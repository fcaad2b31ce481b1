"""The key-value cache: read-only in a forward, written by `commit` alone, after acceptance."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt32

from jax_smash import cpu
from jax_smash.pytree import pytree, replace, static
from jax_smash.shapes import round_up
from jax_smash.sharding import on_each_device

EMPTY = 2**30
"""Slot position of an empty slot: after every real position, so comparing positions also hides empty slots."""

FEW_WRITES = 8
"""Entries a layer up to which single writes beat one scatter."""

ROWS, HEADS = ("batch",), ("batch", "kv_heads")
"""Logical axes of the cache's arrays: of a kind's positions, and of a layer's keys or values."""


@pytree
class SideBySide:
    """Keys and values of a block's entries, in place of a pair of them: as a TPU's layers make them, in one array.

    Apart from each other, all of them would be laid out anew. So only those that are committed are taken apart.

    Attributes:
      pairs: each KV head's key and value.
    """

    pairs: Float[Array, "B T K 2 H"]

    def __iter__(self) -> Iterator[Float[Array, "B T K H"]]:
        yield self.pairs[..., 0, :]
        yield self.pairs[..., 1, :]


KeyValue = tuple[Any, Any] | SideBySide
"""Keys and values that a layer made, each `[B, T, K, H]`."""

BlockKV = tuple[KeyValue, ...]
"""Those that a forward made, a layer's behind another's."""


@pytree
class Earlier:
    """Entries of a block that earlier forwards have read, and that are in no cache yet.

    Attributes:
      block_kv: keys and values of these entries, a pair a layer.
      position: of each entry.
    """

    block_kv: BlockKV
    position: Int[Array, "B E"]


@pytree
class Block:
    """How the T entries of one forward see each other, and the E entries before them that are not in the cache.

    Attributes:
      valid: False at padding, which nothing sees and nothing commits; earlier entries first.
      ancestors: bit j of entry i is set where entry i sees entry j, itself included, packed 32 to a word; None means
        causal.
      segments: entries see only entries of their own segment (documents packed in a row); None where all are one.
      earlier: what earlier forwards over the same block have read; None where E is 0.
    """

    valid: Bool[Array, "B all"]
    ancestors: UInt32[Array, "B T W"] | None = None
    segments: Int[Array, "B all"] | None = None
    earlier: Earlier | None = None

    @classmethod
    def causal(cls, valid: Bool[Array, "B T"], segments: Int[Array, "B T"] | None = None) -> "Block":
        """Makes a block in which each entry sees itself and the entries before it, in its own segment."""
        return cls(valid=valid, ancestors=None, segments=segments)

    def layer(self, layer: int) -> "Block":
        """Returns the block as one layer sees it: of the earlier entries, only its own keys and values."""
        if self.earlier is None:
            return self
        return replace(self, earlier=replace(self.earlier, block_kv=(self.earlier.block_kv[layer],)))

    def behind_earlier(
        self, key: Float[Array, "B T K H"], value: Float[Array, "B T K H"], position: Int[Array, "B T"]
    ) -> tuple[Float[Array, "B all K H"], Float[Array, "B all K H"], Int[Array, "B all"]]:
        """Returns one layer's keys, values and positions of the earlier entries and the new ones."""
        if self.earlier is None:
            return key, value, position
        (before,), made = self.earlier.block_kv, (key, value)
        keys, values = (jnp.concatenate(pair, axis=1) for pair in zip(before, made, strict=True))
        return keys, values, jnp.concatenate([self.earlier.position, position], axis=1)

    def mask(self) -> Bool[Array, "B T all"]:
        """Returns which entry (last axis) each new entry (middle axis) sees."""
        width = self.valid.shape[1]
        if self.ancestors is None:
            new = width if self.earlier is None else width - self.earlier.position.shape[1]
            seen = jnp.tril(jnp.ones((width, width), bool))[None, width - new :]
        else:
            entry = jnp.arange(width, dtype=jnp.uint32)
            words = self.ancestors[:, :, entry // 32]
            seen = ((words >> (entry % 32)[None, None]) & 1).astype(bool)
        if self.segments is not None:
            seen &= self.segments[:, -seen.shape[1] :, None] == self.segments[:, None, :]
        return seen & self.valid[:, None, :]

    def parents(self) -> Int[Array, "B T"]:
        """Returns the last other new entry that each new entry sees; −1 where it sees none.

        In a tree that is its parent, for parents stand before their children.
        """
        seen = self.mask()
        width = seen.shape[1]
        entry = jnp.arange(width, dtype=jnp.int32)
        before = seen[:, :, -width:] & (entry[None] < entry[:, None])[None]
        return jnp.where(before, entry[None, None], -1).max(-1)


@pytree
class Write:
    """Which entries of a forward a cache keeps.

    Attributes:
      position: of every entry of the forward.
      count: entries to write a row, at most P. It must depend on the logits (`after`), so that every read of the cache
        comes before the write and XLA can write in place; and there must be room for them.
      path: which entries, in order; None takes them from the front.
    """

    position: Int[Array, "B T"]
    count: Int[Array, "B"]
    path: Int[Array, "B P"] | None = None


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
    """

    keys: tuple[Float[Array, "B K _ H"], ...]
    values: tuple[Float[Array, "B K _ H"], ...]
    positions: tuple[Int[Array, "B _"], ...]
    slot_length: Int[Array, "B"]
    reach: Int[Array, "B"] | None = None
    kind_of_layer: tuple[int, ...] = static()
    starts: tuple[int | None, ...] = static()
    sinks: Sinks | None = static(default=None)

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
            block_kv = jax.tree.map(functools.partial(_pick, path=write.path), block_kv)
            position = _pick(position, write.path)
        layers = len(self.keys)
        arrays = (*self.keys, *self.values, *(p[:, None, :, None] for p in self.positions))
        keys, values = zip(*block_kv, strict=True)
        entries = (*keys, *values)
        entries = (*entries, *(position[:, :, None, None] for _ in self.positions))
        by_layer = [self.starts[kind] for kind in self.kind_of_layer]
        write_all = functools.partial(_write, starts=(*by_layer, *by_layer, *self.starts))
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
    """

    keys: Float[Array, "B K S H"]
    values: Float[Array, "B K S H"]
    position: Int[Array, "B S"]
    sinks: Sinks | None = static(default=None)

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


def after(count: Int[Array, "B"], evidence: Int[Array, "B"] | Float[Array, "B"]) -> Int[Array, "B"]:
    """Returns `count` unchanged, but known only once `evidence` is: tokens (at least 0), or numbers from the logits.

    A write that could run before the attention has read the cache makes XLA copy the cache. An optimisation barrier is
    no help: it is gone when copies are inserted. So where the write goes is made to depend on what was read.
    """
    impossible = jnp.isnan(evidence) if jnp.issubdtype(evidence.dtype, jnp.floating) else evidence < 0
    return jnp.where(impossible, 0, count)


def _pick(entries: Shaped[Array, "B T *entry"], path: Int[Array, "B P"]) -> Shaped[Array, "B P *entry"]:
    rows = entries.reshape(*entries.shape[:2], -1)
    return jnp.take_along_axis(rows, path[:, :, None], axis=1).reshape(*path.shape, *entries.shape[2:])


def _write(
    arrays: tuple[Shaped[Array, "B _ _ _"], ...],
    entries: tuple[Shaped[Array, "B P _ _"], ...],
    slot_length: Int[Array, "B"],
    count: Int[Array, "B"],
    *,
    starts: tuple[int | None, ...],
) -> tuple[Shaped[Array, "B _ _ _"], ...]:
    by_array = functools.partial(_write_by_array, starts=starts)
    by_entry = functools.partial(cpu.write_by_entry, by_array)
    by_row = functools.partial(_write_by_row, starts=starts)
    return jax.lax.platform_dependent(arrays, entries, slot_length, count, cpu=by_entry, tpu=by_row, default=by_array)


def _slot(entry: Int[Array, "*n"], slots: int, start: int | None) -> Int[Array, "*n"]:
    """Returns the slot of a row's entry by its number: they fill in order, and start over at `start`."""
    first = start or 0
    return entry % slots if not first else jnp.where(entry < slots, entry, first + (entry - first) % (slots - first))


def _write_by_array(
    arrays: tuple[Shaped[Array, "B _ _ _"], ...],
    entries: tuple[Shaped[Array, "B P _ _"], ...],
    slot_length: Int[Array, "B"],
    count: Int[Array, "B"],
    *,
    starts: tuple[int | None, ...],
) -> tuple[Shaped[Array, "B _ _ _"], ...]:
    """Writes the first `count` entries of each row behind its `slot_length` slots, an array at a time."""
    offset = jnp.arange(entries[0].shape[1], dtype=jnp.int32)[None]
    written = []
    for array, new, start in zip(arrays, entries, starts, strict=True):
        slots = array.shape[2]
        slot = jnp.where(offset < count[:, None], _slot(slot_length[:, None] + offset, slots, start), slots)
        written.append(_write_slots(array, new.astype(array.dtype), slot))
    return tuple(written)


@jax.jit  # Traced once for all arrays of a shape.
def _write_slots(
    array: Shaped[Array, "B K S H"], entries: Shaped[Array, "B P K H"], slot: Int[Array, "B P"]
) -> Shaped[Array, "B K S H"]:
    """Writes each entry into its slot; a slot past the end is dropped."""
    batch, width = slot.shape
    if batch * width <= FEW_WRITES:
        return _write_one_by_one(array, entries, slot)
    rows = jnp.arange(batch, dtype=jnp.int32)[:, None]
    # The advanced indices stand apart, so their axes come first: [B, P, K, H], as the entries are.
    return array.at[rows, :, slot].set(entries, mode="drop")


def _write_one_by_one(
    array: Shaped[Array, "B K S H"], entries: Shaped[Array, "B P K H"], slot: Int[Array, "B P"]
) -> Shaped[Array, "B K S H"]:
    last, zero = array.shape[2] - 1, jnp.zeros((), jnp.int32)
    for row in range(slot.shape[0]):
        for i in range(slot.shape[1]):
            start = (jnp.int32(row), zero, jnp.minimum(slot[row, i], last), zero)
            entry = entries[row, i][None, :, None]
            held = jax.lax.dynamic_slice(array, start, entry.shape)
            array = jax.lax.dynamic_update_slice(array, jnp.where(slot[row, i] > last, held, entry), start)
    return array


def _write_by_row(
    arrays: tuple[Shaped[Array, "B _ _ _"], ...],
    entries: tuple[Shaped[Array, "B P _ _"], ...],
    slot_length: Int[Array, "B"],
    count: Int[Array, "B"],
    *,
    starts: tuple[int | None, ...],
) -> tuple[Shaped[Array, "B _ _ _"], ...]:
    """Does what `_write_by_array` does in one loop over the rows, which writes a window of slots into every array.

    For a TPU: there a scatter, or a window outside such a loop, turns every cache into another layout and back.
    """
    # The margins let a window begin before the entries, or end behind them.
    many = entries[0].shape[1] > 1
    margins = [min(new.shape[1], array.shape[2]) * many for array, new in zip(arrays, entries, strict=True)]
    padded = [
        jnp.pad(new.astype(array.dtype).transpose(0, 2, 1, 3), ((0, 0), (0, 0), (margin, margin), (0, 0)))
        for array, new, margin in zip(arrays, entries, margins, strict=True)
    ]

    def write_row(row: Int[Array, ""], arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(
            _pin(_write_window(array, new, row, slot_length[row], count[row], margin=margin, start=start))
            for array, new, margin, start in zip(arrays, padded, margins, starts, strict=True)
        )

    return jax.lax.fori_loop(jnp.int32(0), jnp.int32(slot_length.shape[0]), write_row, tuple(map(_pin, arrays)))


@functools.partial(jax.jit, static_argnames=("margin", "start"))  # As above.
def _write_window(
    array: Shaped[Array, "B K S H"],
    entries: Shaped[Array, "B K padded H"],
    row: Int[Array, ""],
    slot_length: Int[Array, ""],
    count: Int[Array, ""],
    *,
    margin: int,
    start: int | None,
) -> Shaped[Array, "B K S H"]:
    _, heads, slots, width = array.shape
    window = max(margin, 1)
    offset = _slot(slot_length, slots, start)
    zero = jnp.zeros((), jnp.int32)
    begin = jnp.minimum(offset, slots - window)
    # Where the slots start over, what does not fit at the end goes to the front.
    windows = [(begin, begin - offset)]
    windows += [(jnp.int32(start), slots - offset)] if margin and start is not None else []
    for begin, first in windows:
        where = jnp.clip(first + margin, 0, entries.shape[2] - window)
        new = jax.lax.dynamic_slice(entries, (row, zero, where, zero), (1, heads, window, width))
        held = jax.lax.dynamic_slice(array, (row, zero, begin, zero), new.shape)
        entry = first + jnp.arange(window, dtype=jnp.int32)
        written = ((entry >= 0) & (entry < count))[None, None, :, None]
        array = jax.lax.dynamic_update_slice(array, jnp.where(written, new, held), (row, zero, begin, zero))
    return array


def _pin(array: Shaped[Array, "B K S H"]) -> Shaped[Array, "B K S H"]:
    """Keeps an array in the layout that a TPU gives it where a program begins and ends: the one that pads less."""
    _, _, slots, width = array.shape
    slots_last = round_up(width, 8) * round_up(slots, 128) < round_up(slots, 8) * round_up(width, 128)
    return with_layout_constraint(array, Layout(major_to_minor=(0, 1, 3, 2) if slots_last else (0, 1, 2, 3)))
