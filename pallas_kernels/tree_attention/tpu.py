"""Tree attention for a TPU: softmax kept up block by block, a KV head of a batch row at a time."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Shaped

from pallas_kernels.tree_attention.inputs import WORD, Inputs, Options
from pallas_kernels.tree_attention.reference import MASKED
from pallas_kernels.tree_attention.rows import (
    entries,
    head_major,
    needed_blocks,
    own_positions,
    query_rows,
    round_up,
    row_positions,
    row_words,
)

LANES = 128
MOST_ROWS = 512
"""Rows at once: more would leave no room for the cache's blocks beside their scores."""

SCORES = 2**18
"""Scores at once, a mebibyte: the vector memory that a program may use by default holds several such arrays."""

MOST_SLOTS = 2048
MOST_ENTRIES = 256
"""Entries of the block itself at once."""


def attend(inputs: Inputs, options: Options, *, interpret: Any = False) -> Float[Array, "B T N H"]:
    """Returns what the reference returns.

    Each step of the grid reads one block of the cache, or of the entries themselves; blocks of the cache that a batch
    row does not need are neither read nor computed.

    Args:
      inputs, options: of the call.
      interpret: as of `pallas_call`: True or `InterpretParams` runs without a TPU.
    """
    batch, width, heads, head_width = inputs.query.shape
    kv_heads, slots = inputs.keys.shape[1:3]
    rows, tile = _row_tiles(width * heads // kv_heads)
    columns, own_tile = _own_tiles(width)
    block = _block_slots(slots, tile)
    order, count = needed_blocks(inputs, options, block)
    own_blocks, words = columns // own_tile, own_tile // WORD
    # A TPU holds an array in the layout that pads less. Asked for in another, the whole cache would be copied.
    slots_last = _padded(slots, head_width) < _padded(head_width, slots)

    def cached(row: Any, head: Any, _: Any, step: Any, order: Any, count: Any) -> tuple[Any, ...]:
        which = order[row, jnp.clip(step - own_blocks, 0, order.shape[1] - 1)]
        return (row, head, 0, which) if slots_last else (row, head, which, 0)

    def slot(row: Any, _: Any, __: Any, step: Any, order: Any, count: Any) -> tuple[Any, ...]:
        return row, 0, order[row, jnp.clip(step - own_blocks, 0, order.shape[1] - 1)]

    def own(row: Any, head: Any, _: Any, step: Any, *__: Any) -> tuple[Any, ...]:
        return row, head, jnp.minimum(step, own_blocks - 1), 0

    def held(cache: Array) -> Array:
        cache = cache.swapaxes(2, 3) if slots_last else cache
        # Else the compiler may fetch all of it beforehand, the blocks that nobody needs too.
        return cache if interpret else pltpu.with_memory_space_constraint(cache, pltpu.HBM)

    by_row, cache_block = (1, 1, tile, head_width), (1, 1, block, head_width)
    cache_block = (1, 1, head_width, block) if slots_last else cache_block
    call = pl.pallas_call(
        functools.partial(
            _kernel, options=options, own_blocks=own_blocks, slots=slots, block=block, slots_last=slots_last
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(batch, kv_heads, rows // tile, own_blocks + jnp.max(count)),
            in_specs=[
                pl.BlockSpec(by_row, lambda b, k, r, *_: (b, k, r, 0)),
                pl.BlockSpec((1, tile, 1), lambda b, k, r, *_: (b, r, 0)),
                pl.BlockSpec((1, 1, tile, words), lambda b, k, r, s, *_: (b, jnp.minimum(s, own_blocks - 1), r, 0)),
                pl.BlockSpec((1, 1, 1, own_tile), lambda b, k, r, s, *_: (b, jnp.minimum(s, own_blocks - 1), 0, 0)),
                pl.BlockSpec((1, 1, own_tile, head_width), own),
                pl.BlockSpec((1, 1, own_tile, head_width), own),
                pl.BlockSpec((1, 1, block), slot),
                pl.BlockSpec(cache_block, cached),
                pl.BlockSpec(cache_block, cached),
            ],
            out_specs=pl.BlockSpec(by_row, lambda b, k, r, *_: (b, k, r, 0)),
            scratch_shapes=[
                pltpu.VMEM((tile, 1), jnp.float32),
                pltpu.VMEM((tile, 1), jnp.float32),
                pltpu.VMEM((tile, head_width), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((batch, kv_heads, rows, head_width), inputs.query.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
        ),
        cost_estimate=_cost(inputs, rows, rows // tile),
        name="tree_attention",
        interpret=interpret,
    )
    bits = row_words(inputs, rows, columns // WORD).astype(jnp.int32)
    out = call(
        order,
        count,
        query_rows(inputs.query, kv_heads, rows),
        row_positions(inputs, rows)[:, :, None],
        bits.reshape(batch, rows, own_blocks, words).transpose(0, 2, 1, 3),
        own_positions(inputs.position, columns).reshape(batch, own_blocks, 1, own_tile),
        head_major(inputs.key, columns),
        head_major(inputs.value, columns),
        inputs.slot_position[:, None],
        held(inputs.keys),
        held(inputs.values),
    )
    return entries(out, width, heads)


def _kernel(
    order: Any,
    count: Any,
    query: Any,
    row_position: Any,
    words: Any,
    own_position: Any,
    own_key: Any,
    own_value: Any,
    slot_position: Any,
    keys: Any,
    values: Any,
    out: Any,
    peak: Any,
    total: Any,
    mixed: Any,
    *,
    options: Options,
    own_blocks: int,
    slots: int,
    block: int,
    slots_last: bool,
) -> None:
    """Reads one block for a tile of rows; `peak`, `total` and `mixed` carry the softmax from block to block."""
    row, step = pl.program_id(0), pl.program_id(3)

    @pl.when(step == 0)
    def _begin() -> None:
        peak[...] = jnp.full(peak.shape, MASKED, jnp.float32)
        total[...] = jnp.zeros(total.shape, jnp.float32)
        mixed[...] = jnp.zeros(mixed.shape, jnp.float32)

    def absorb(key: Array, value: Array, seen: Array, position: Array, *, last: bool) -> None:
        if options.window:
            seen &= position > row_position[0] - options.window
        scores = _product(query[0, 0], key, 0 if last else 1) * jnp.float32(options.scale)
        if options.softcap:
            scores = options.softcap * jnp.tanh(scores / options.softcap)
        scores = jnp.where(seen, scores, MASKED)
        highest = jnp.maximum(peak[...], scores.max(1, keepdims=True))
        # Where nothing is seen yet, every score equals the peak: only the mask makes their weights zero.
        weights = jnp.where(seen, jnp.exp(scores - highest), 0.0)
        fade = jnp.exp(peak[...] - highest)
        peak[...] = highest
        total[...] = fade * total[...] + weights.sum(1, keepdims=True)
        mixed[...] = fade * mixed[...] + _product(weights.astype(value.dtype), value, 1 if last else 0)

    @pl.when(step < own_blocks)
    def _own() -> None:
        seen = _bits(words[0, 0], own_position.shape[3])
        absorb(own_key[0, 0], own_value[0, 0], seen, own_position[0, 0], last=False)

    @pl.when((step >= own_blocks) & (step - own_blocks < count[row]))
    def _cached() -> None:
        position, value = slot_position[0], values[0, 0]
        seen = position <= row_position[0]
        if slots % block:
            # The last block ends behind the cache, and what it holds there may be anything, NaN too.
            held = slots - block * order[row, step - own_blocks]
            seen &= jax.lax.broadcasted_iota(jnp.int32, position.shape, 1) < held
            inside = jax.lax.broadcasted_iota(jnp.int32, value.shape, 1 if slots_last else 0) < held
            value = jnp.where(inside, value, jnp.zeros_like(value))
        absorb(keys[0, 0], value, seen, position, last=slots_last)

    @pl.when(step == pl.num_programs(3) - 1)
    def _end() -> None:
        everything = jnp.where(total[...] > 0, total[...], 1.0)
        out[0, 0] = (mixed[...] / everything).astype(out.dtype)


def _product(a: Float[Array, "X Y"], b: Float[Array, "_ _"], axis: int) -> Float[Array, "X Z"]:
    """Returns the product of `a` with `b` over `b`'s axis, float32; float32 operands are not rounded."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    numbers = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(a, b, numbers, precision=precision, preferred_element_type=jnp.float32)


def _bits(words: Shaped[Array, "R Words"], columns: int) -> Shaped[Array, "R U"]:
    """Returns each row's bits as booleans."""
    column = jax.lax.broadcasted_iota(jnp.int32, (words.shape[0], columns), 1)
    word = jnp.broadcast_to(words[:, :1], column.shape)
    for i in range(1, words.shape[1]):
        word = jnp.where(column >= i * WORD, words[:, i : i + 1], word)
    return ((word >> (column % WORD)) & 1) != 0


def _row_tiles(rows: int) -> tuple[int, int]:
    """Returns the padded number of rows, and how many are worked on at once: equal tiles of sixteens."""
    tile = round_up(-(-rows // -(-rows // MOST_ROWS)), 16)
    return round_up(rows, tile), tile


def _own_tiles(width: int) -> tuple[int, int]:
    tile = min(round_up(width, WORD), MOST_ENTRIES)
    return round_up(width, tile), tile


def _block_slots(slots: int, rows: int) -> int:
    return min(slots, max(LANES, min(MOST_SLOTS, SCORES // rows // LANES * LANES)))


def _padded(last: int, second: int) -> int:
    return round_up(last, LANES) * round_up(second, 8)


def _cost(inputs: Inputs, rows: int, tiles: int) -> pl.CostEstimate:
    """Tells the compiler what a full cache costs."""
    batch, width, _, head_width = inputs.query.shape
    kv_heads, slots = inputs.keys.shape[1:3]
    scores = batch * kv_heads * rows * (slots + width)
    moved = batch * kv_heads * head_width * (2 * tiles * (slots + width) + 2 * rows) * inputs.query.dtype.itemsize
    return pl.CostEstimate(flops=4 * scores * head_width, bytes_accessed=moved, transcendentals=scores)
