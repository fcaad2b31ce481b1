"""Tree attention for a TPU: softmax kept up block by block, a KV head of a batch row at a time.

A KV head's queries, key and value lie side by side in an entry, as one product of a layer makes them. Where they fill
whole lanes, the kernel reads them from there, and writes what follows in the same order: nothing is laid out anew. Its
rows are entries by query head: row g · T + t is entry t's g-th head, so that all heads share the mask of their entry.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from pallas_kernels.tree_attention.inputs import WORD, Inputs, Options
from pallas_kernels.tree_attention.rows import needed_blocks, round_up
from pallas_kernels.tree_attention.tpu_softmax import LANES, ROWS, Entries, Softmax, scratch

MOST_ROWS = 512
"""Rows at once: more would leave no room for the cache's blocks beside their scores."""

SCORES = 2**20
"""Scores that are kept at once, 4 MiB: a program may use 16 MiB of vector memory by default."""

MOST_SLOTS = 2048
BLOCK_BYTES = 2**21
"""Bytes of a block's keys and values, of which two are in vector memory."""


def attend(inputs: Inputs, options: Options, *, interpret: Any = False) -> Float[Array, "B T N H"]:
    """Returns what the reference returns.

    Each step of the grid reads one block of the cache, and the first ones a tile of the entries themselves; blocks of
    the cache that a batch row does not need are neither read nor computed.

    Args:
      inputs, options: of the call.
      interpret: as of `pallas_call`: True or `InterpretParams` runs without a TPU.
    """
    batch, width, heads, head_width = inputs.query.shape
    kv_heads, slots = inputs.keys.shape[1:3]
    group = heads // kv_heads
    entries, tile = entry_tiles(width, group)
    slot_bytes = 2 * head_width * inputs.keys.dtype.itemsize
    rows, block = work_at_once(width, group, slots, slot_bytes)
    tiles = entries // tile
    order, count = needed_blocks(inputs, options, block)
    # A TPU holds an array in the layout that pads less. Asked for in another, the whole cache would be copied.
    slots_last = slots_lie_last(slots, head_width)

    def cached(row: Any, step: Any, order: Any) -> Any:
        return order[row, jnp.minimum(step, order.shape[1] - 1)]

    def cache_index(b: Any, k: Any, _: Any, s: Any, order: Any, __: Any) -> tuple[Any, ...]:
        which = cached(b, s, order)
        return (b, k, 0, which) if slots_last else (b, k, which, 0)

    def held(cache: Array) -> Array:
        cache = cache.swapaxes(2, 3) if slots_last else cache
        # Else the compiler may fetch all of it beforehand, the blocks that nobody needs too.
        return cache if interpret else pltpu.with_memory_space_constraint(cache, pltpu.HBM)

    def which(b: Any, k: Any, r: Any, s: Any, *_: Any) -> tuple[Any, ...]:
        return b, k, r, jnp.minimum(s, tiles - 1)

    mine = Entries.of(inputs, entries, tile)
    cache_spec = pl.BlockSpec(
        (None, None, head_width, block) if slots_last else (None, None, block, head_width), cache_index
    )
    call = pl.pallas_call(
        functools.partial(_kernel, options=options, tiles=tiles, slots=slots, block=block, slots_last=slots_last),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(batch, kv_heads, tiles, jnp.maximum(jnp.max(count), tiles)),
            in_specs=[
                *mine.specs(which),
                pl.BlockSpec((None, 1, block), lambda b, k, r, s, order, _: (b, 0, cached(b, s, order))),
                cache_spec,
                cache_spec,
            ],
            out_specs=mine.out_spec(which),
            scratch_shapes=scratch(rows, head_width, max(block, tile, ROWS), inputs.query.dtype),
        ),
        out_shape=mine.result,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
        ),
        cost_estimate=cost(inputs, tiles, slots, slot_bytes),
        name="tree_attention",
        interpret=interpret,
    )
    out = call(
        order,
        count,
        *mine.operands,
        inputs.slot_position[:, None],
        held(inputs.keys),
        held(inputs.values),
    )
    return mine.by_entry(out)[:, :width]


def work_at_once(width: int, group: int, slots: int, slot_bytes: int) -> tuple[int, int]:
    """Returns the rows and slots whose scores a step of the grid makes; blocks of slots are equal, as few as can be.

    Args:
      width: entries of the block, T.
      group: query heads of a KV head.
      slots: of the cache.
      slot_bytes: of a slot's key and value.
    """
    rows = group * entry_tiles(width, group)[1]
    most = min(MOST_SLOTS, SCORES // rows // LANES * LANES, BLOCK_BYTES // slot_bytes // LANES * LANES)
    blocks = -(-slots // max(most, LANES))
    return rows, min(slots, round_up(-(-slots // blocks), LANES))


def _kernel(
    order: Any,
    count: Any,
    mine: Any,
    *refs: Any,
    options: Options,
    tiles: int,
    slots: int,
    block: int,
    slots_last: bool,
) -> None:
    """Reads one block for a tile of entries. All entries are one tile where no other tile of them is given."""
    theirs, *others = refs if tiles > 1 else (mine, *refs)
    entry_position, words, own_position, slot_position, keys, values, out, *scratch = others
    row, step = pl.program_id(0), pl.program_id(3)
    softmax = Softmax(*scratch, options=options)

    @pl.when(step == 0)
    def _begin() -> None:
        softmax.begin(mine)

    @pl.when(step < tiles)
    def _own() -> None:
        softmax.absorb_entries(theirs, words, own_position, entry_position)

    @pl.when(step < count[row])
    def _cached() -> None:
        position, value = slot_position[...], values[...]
        seen = softmax.within(position <= entry_position[...], position, entry_position)
        if slots % block:
            # The last block ends behind the cache, and what it holds there may be anything, NaN too.
            held = slots - block * order[row, step]
            seen &= jax.lax.broadcasted_iota(jnp.int32, position.shape, 1) < held
            inside = jax.lax.broadcasted_iota(jnp.int32, value.shape, 1 if slots_last else 0) < held
            value = jnp.where(inside, value, jnp.zeros_like(value))
        softmax.absorb(keys[...], value, seen, last=slots_last)

    @pl.when(step == pl.num_programs(3) - 1)
    def _end() -> None:
        softmax.end(out)


def entry_tiles(width: int, group: int) -> tuple[int, int]:
    """Returns the padded number of entries, and those of a tile: all, a multiple of eight, or as many whole words."""
    tiles = -(-width // max(MOST_ROWS // group // WORD * WORD, WORD))
    tile = round_up(-(-width // tiles), WORD if tiles > 1 else ROWS) if width > 1 else 1
    return tiles * tile, tile


def slots_lie_last(slots: int, head_width: int) -> bool:
    """Whether a TPU holds a cache with slots along lanes: it takes the layout that pads less."""
    return _padded(slots, head_width) < _padded(head_width, slots)


def _padded(last: int, second: int) -> int:
    return round_up(last, LANES) * round_up(second, ROWS)


def cost(inputs: Inputs, tiles: int, slots: int, slot_bytes: int) -> pl.CostEstimate:
    """Tells the compiler what so many slots of the cache cost, of which each has so many bytes in a KV head."""
    batch, width, heads, head_width = inputs.query.shape
    kv_heads = inputs.keys.shape[1]
    scores = batch * heads * width * (slots + width)
    own = 2 * width * head_width * (kv_heads * tiles + heads) * inputs.query.dtype.itemsize
    moved = batch * (kv_heads * tiles * slots * slot_bytes + own)
    return pl.CostEstimate(flops=4 * scores * head_width, bytes_accessed=moved, transcendentals=scores)
