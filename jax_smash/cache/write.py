"""The one write of a cache, in the form that each platform needs."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float, Int, Shaped

from jax_smash import cpu
from jax_smash.pytree import pytree
from jax_smash.shapes import round_up

FEW_WRITES = 8
"""Entries a layer up to which single writes beat one scatter."""


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


def after(count: Int[Array, "B"], evidence: Int[Array, "B"] | Float[Array, "B"]) -> Int[Array, "B"]:
    """Returns `count` unchanged, but known only once `evidence` is: tokens (at least 0), or numbers from the logits.

    A write that could run before the attention has read the cache makes XLA copy the cache. An optimisation barrier is
    no help: it is gone when copies are inserted. So where the write goes is made to depend on what was read.
    """
    impossible = jnp.isnan(evidence) if jnp.issubdtype(evidence.dtype, jnp.floating) else evidence < 0
    return jnp.where(impossible, 0, count)


def pick(entries: Shaped[Array, "B T *entry"], path: Int[Array, "B P"]) -> Shaped[Array, "B P *entry"]:
    rows = entries.reshape(*entries.shape[:2], -1)
    return jnp.take_along_axis(rows, path[:, :, None], axis=1).reshape(*path.shape, *entries.shape[2:])


def write_entries(
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


def write_shares(
    arrays: tuple[Shaped[Array, "B _ _ _"], ...],
    entries: tuple[Shaped[Array, "B P _ _"], ...],
    slot_length: Int[Array, "B"],
    count: Int[Array, "B"],
    *,
    starts: tuple[int | None, ...],
    over: str,
) -> tuple[Shaped[Array, "B _ _ _"], ...]:
    """Does what `write_entries` does where each device of a mesh axis has a share of the slots, in order.

    For a `shard_map` over that axis. Every device has all entries and writes those that fall into its slots.

    Args:
      arrays: each device's share.
      over: the axis.
    """
    offset = jnp.arange(entries[0].shape[1], dtype=jnp.int32)[None]
    devices, device = jax.lax.axis_size(over), jax.lax.axis_index(over)
    written = []
    for array, new, start in zip(arrays, entries, starts, strict=True):
        share = array.shape[2]
        slot = _slot(slot_length[:, None] + offset, share * devices, start) - share * device
        own = (offset < count[:, None]) & (slot >= 0) & (slot < share)
        written.append(_write_slots(array, new.astype(array.dtype), jnp.where(own, slot, share)))
    return tuple(written)


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
            pin(_write_window(array, new, row, slot_length[row], count[row], margin=margin, start=start))
            for array, new, margin, start in zip(arrays, padded, margins, starts, strict=True)
        )

    return jax.lax.fori_loop(jnp.int32(0), jnp.int32(slot_length.shape[0]), write_row, tuple(map(pin, arrays)))


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


def pin(array: Shaped[Array, "B K S H"]) -> Shaped[Array, "B K S H"]:
    """Keeps an array in the layout that a TPU gives it where a program begins and ends: the one that pads less."""
    _, _, slots, width = array.shape
    slots_last = round_up(width, 8) * round_up(slots, 128) < round_up(slots, 8) * round_up(width, 128)
    return with_layout_constraint(array, Layout(major_to_minor=(0, 1, 3, 2) if slots_last else (0, 1, 2, 3)))
