"""Tree attention for a TPU: softmax kept up block by block, a KV head of a batch row at a time.

A KV head's queries, key and value lie side by side in an entry, as one product of a layer makes them. Where they fill
whole lanes, the kernel reads them from there, and writes what follows in the same order: nothing is laid out anew. Its
rows are entries by query head: row g · T + t is entry t's g-th head, so that all heads share the mask of their entry.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int, Shaped

from pallas_kernels.tree_attention.inputs import WORD, Inputs, Options
from pallas_kernels.tree_attention.reference import MASKED
from pallas_kernels.tree_attention.rows import (
    entry_positions,
    entry_words,
    heads_side_by_side,
    needed_blocks,
    own_positions,
    round_up,
)

LANES = 128
ROWS = 8
MOST_ROWS = 512
"""Rows at once: more would leave no room for the cache's blocks beside their scores."""

SCORES = 2**20
"""Scores that are kept at once, 4 MiB: a program may use 16 MiB of vector memory by default."""

MOST_SLOTS = 2048
BLOCK_BYTES = 2**21
"""Bytes of a block's keys and values, of which two are in vector memory."""

COLUMNS = 256
"""Scores of a row that one product makes: as wide as a matrix unit."""

LOG2_E = math.log2(math.e)


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
    entries, tile = _entry_tiles(width, group)
    rows, block = work_at_once(width, group, slots, 2 * head_width * inputs.keys.dtype.itemsize)
    tiles, words = entries // tile, -(-tile // WORD)
    order, count = needed_blocks(inputs, options, block)
    # A TPU holds an array in the layout that pads less. Asked for in another, the whole cache would be copied.
    slots_last = _padded(slots, head_width) < _padded(head_width, slots)

    def own(step: Any) -> Any:
        return jnp.minimum(step, tiles - 1)

    def cached(row: Any, step: Any, order: Any) -> Any:
        return order[row, jnp.minimum(step, order.shape[1] - 1)]

    def cache_index(b: Any, k: Any, _: Any, s: Any, order: Any, __: Any) -> tuple[Any, ...]:
        which = cached(b, s, order)
        return (b, k, 0, which) if slots_last else (b, k, which, 0)

    def held(cache: Array) -> Array:
        cache = cache.swapaxes(2, 3) if slots_last else cache
        # Else the compiler may fetch all of it beforehand, the blocks that nobody needs too.
        return cache if interpret else pltpu.with_memory_space_constraint(cache, pltpu.HBM)

    fused = heads_side_by_side(inputs, entries)
    whole = kv_heads == 1 or (fused.shape[2] // kv_heads % LANES == 0 and group * head_width % LANES == 0)
    lanes = (group + 2) * head_width

    def head_of(width: int, which: Any) -> pl.BlockSpec:
        """Returns the block of a tile of entries of a KV head, `width` lanes of it."""
        if whole:
            return pl.BlockSpec((None, tile, width), lambda b, k, r, s, *_: (b, which(r, s), k))
        return pl.BlockSpec((None, None, tile, width), lambda b, k, r, s, *_: (b, k, which(r, s), 0))

    if not whole:
        fused = fused.reshape(batch, entries, kv_heads, lanes).transpose(0, 2, 1, 3)
    made = (batch, entries, heads * head_width) if whole else (batch, kv_heads, entries, group * head_width)
    cache_spec = pl.BlockSpec(
        (None, None, head_width, block) if slots_last else (None, None, block, head_width), cache_index
    )
    call = pl.pallas_call(
        functools.partial(_kernel, options=options, tiles=tiles, slots=slots, block=block, slots_last=slots_last),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(batch, kv_heads, tiles, jnp.maximum(jnp.max(count), tiles)),
            in_specs=[
                head_of(lanes, lambda r, _: r),
                *([head_of(lanes, lambda _, s: own(s))] if tiles > 1 else []),
                pl.BlockSpec((None, tile, 1), lambda b, k, r, *_: (b, r, 0)),
                pl.BlockSpec((None, None, tile, words), lambda b, k, r, s, *_: (b, own(s), r, 0)),
                pl.BlockSpec((None, None, 1, tile), lambda b, k, r, s, *_: (b, own(s), 0, 0)),
                pl.BlockSpec((None, 1, block), lambda b, k, r, s, order, _: (b, 0, cached(b, s, order))),
                cache_spec,
                cache_spec,
            ],
            out_specs=head_of(group * head_width, lambda r, _: r),
            scratch_shapes=[
                pltpu.VMEM((rows, head_width), inputs.query.dtype),
                pltpu.VMEM((rows, max(block, tile, ROWS)), jnp.float32),
                pltpu.VMEM((rows, LANES), jnp.float32),
                pltpu.VMEM((rows, LANES), jnp.float32),
                pltpu.VMEM((rows, head_width), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(made, inputs.query.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
        ),
        cost_estimate=_cost(inputs, tiles),
        name="tree_attention",
        interpret=interpret,
    )
    bits = entry_words(inputs, entries, tiles * words).astype(jnp.int32)
    out = call(
        order,
        count,
        *([fused] * min(tiles, 2)),
        entry_positions(inputs, entries)[:, :, None],
        bits.reshape(batch, entries, tiles, words).transpose(0, 2, 1, 3),
        own_positions(inputs.position, entries).reshape(batch, tiles, 1, tile),
        inputs.slot_position[:, None],
        held(inputs.keys),
        held(inputs.values),
    )
    out = out if whole else out.transpose(0, 2, 1, 3)
    return out.reshape(batch, entries, heads, head_width)[:, :width]


def work_at_once(width: int, group: int, slots: int, slot_bytes: int) -> tuple[int, int]:
    """Returns the rows and slots whose scores a step of the grid makes; blocks of slots are equal, as few as can be.

    Args:
      width: entries of the block, T.
      group: query heads of a KV head.
      slots: of the cache.
      slot_bytes: of a slot's key and value.
    """
    rows = group * _entry_tiles(width, group)[1]
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
    """Reads one block for a tile of entries; `peak`, `total` and `mixed` carry the softmax from block to block.

    Every lane of `peak` holds its row's highest score so far, in powers of two; the lanes of `total` add up to the sum
    of its weights. All entries are one tile where no other tile of them is given.
    """
    theirs, *others = refs if tiles > 1 else (mine, *refs)
    entry_position, words, own_position, slot_position, keys, values, out, queries, scores, peak, total, mixed = others
    row, step = pl.program_id(0), pl.program_id(3)
    tile, head_width = mine.shape[0], queries.shape[1]
    group = queries.shape[0] // tile

    @pl.when(step == 0)
    def _begin() -> None:
        for head in range(group):
            queries[head * tile : (head + 1) * tile] = mine[:, head * head_width : (head + 1) * head_width]
        peak[...] = jnp.full(peak.shape, MASKED, jnp.float32)
        total[...] = jnp.zeros(total.shape, jnp.float32)
        mixed[...] = jnp.zeros(mixed.shape, jnp.float32)

    def score(key: Array, seen: Bool[Array, "T U"], last: bool) -> Float[Array, "R U"]:
        made = _product(queries[...], key, 0 if last else 1)
        if options.softcap:
            made = jnp.tanh(made * jnp.float32(options.scale / options.softcap)) * jnp.float32(options.softcap * LOG2_E)
        else:
            made = made * jnp.float32(options.scale * LOG2_E)
        by_head = made.reshape(group, tile, made.shape[1])
        return jnp.where(seen[None], by_head, MASKED).reshape(made.shape)

    def absorb(key: Array, value: Array, seen: Bool[Array, "T U"], *, last: bool) -> None:
        # Scores of some columns at a time, in one pass over all rows: a matrix unit takes each key and value once.
        columns = seen.shape[1]
        parts = [slice(start, min(start + COLUMNS, columns)) for start in range(0, columns, COLUMNS)]
        before = top = peak[...]
        for part in parts:
            made = score(key[:, part] if last else key[part], seen[:, part], last)
            scores[:, part] = made
            top = jnp.maximum(top, _fold(made, jnp.maximum, made.max))
        highest = jnp.broadcast_to(top.max(1, keepdims=True), top.shape)
        fade = jnp.exp2(before - highest)
        sums, sum_of_values = fade * total[...], _as_wide(fade, head_width) * mixed[...]
        for part in parts:
            weights = jnp.exp2(scores[:, part] - _as_wide(highest, part.stop - part.start))
            sums += _fold(weights, jnp.add, weights.sum)
            weighed = value[:, part] if last else value[part]
            sum_of_values += _product(weights.astype(value.dtype), weighed, 1 if last else 0)
        peak[...], total[...], mixed[...] = highest, sums, sum_of_values

    def within(seen: Bool[Array, "T U"], position: Int[Array, "1 _"]) -> Bool[Array, "T U"]:
        return seen & (position > entry_position[...] - options.window) if options.window else seen

    @pl.when(step < tiles)
    def _own() -> None:
        pair = theirs[:, group * head_width :]
        if tile < ROWS:  # No matrix product takes a single key: the other columns are hidden by their bits.
            pair = jnp.broadcast_to(pair, (ROWS, pair.shape[1]))
        seen = within(_bits(words[...], pair.shape[0]), own_position[...])
        absorb(pair[:, :head_width], pair[:, head_width:], seen, last=False)

    @pl.when(step < count[row])
    def _cached() -> None:
        position, value = slot_position[...], values[...]
        seen = within(position <= entry_position[...], position)
        if slots % block:
            # The last block ends behind the cache, and what it holds there may be anything, NaN too.
            held = slots - block * order[row, step]
            seen &= jax.lax.broadcasted_iota(jnp.int32, position.shape, 1) < held
            inside = jax.lax.broadcasted_iota(jnp.int32, value.shape, 1 if slots_last else 0) < held
            value = jnp.where(inside, value, jnp.zeros_like(value))
        absorb(keys[...], value, seen, last=slots_last)

    @pl.when(step == pl.num_programs(3) - 1)
    def _end() -> None:
        # A row that sees nothing has weights that mean nothing: their sum is taken to be infinite.
        everything = jnp.where(peak[:, :1] > MASKED, total[...].sum(1, keepdims=True), jnp.float32(jnp.inf))
        mean = (mixed[...] / everything).astype(out.dtype)
        for head in range(group):
            out[:, head * head_width : (head + 1) * head_width] = mean[head * tile : (head + 1) * tile]


def _product(a: Float[Array, "X Y"], b: Float[Array, "_ _"], axis: int) -> Float[Array, "X Z"]:
    """Returns the product of `a` with `b` over `b`'s axis, float32; float32 operands are not rounded."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    numbers = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(a, b, numbers, precision=precision, preferred_element_type=jnp.float32)


def _fold(x: Float[Array, "R U"], join: Any, reduce: Any) -> Float[Array, "R lanes"]:
    """Joins the columns that share a lane; those of a part that is no multiple of lanes, in the first lane."""
    if x.shape[1] % LANES:
        first = jax.lax.broadcasted_iota(jnp.int32, (x.shape[0], LANES), 1) == 0
        return jnp.where(first, reduce(axis=1, keepdims=True), MASKED if join is jnp.maximum else 0.0)
    return functools.reduce(join, (x[:, i : i + LANES] for i in range(0, x.shape[1], LANES)))


def _as_wide(x: Float[Array, "R lanes"], columns: int) -> Float[Array, "R U"]:
    """Returns what all lanes hold, over so many columns."""
    return jnp.concatenate([x] * -(-columns // LANES), axis=1)[:, :columns]


def _bits(words: Shaped[Array, "T Words"], columns: int) -> Bool[Array, "T U"]:
    """Returns each entry's bits as booleans."""
    column = jax.lax.broadcasted_iota(jnp.int32, (words.shape[0], columns), 1)
    word = jnp.broadcast_to(words[:, :1], column.shape)
    for i in range(1, words.shape[1]):
        word = jnp.where(column >= i * WORD, words[:, i : i + 1], word)
    return ((word >> (column % WORD)) & 1) != 0


def _entry_tiles(width: int, group: int) -> tuple[int, int]:
    """Returns the padded number of entries, and those of a tile: all, a multiple of eight, or as many whole words."""
    tiles = -(-width // max(MOST_ROWS // group // WORD * WORD, WORD))
    tile = round_up(-(-width // tiles), WORD if tiles > 1 else ROWS) if width > 1 else 1
    return tiles * tile, tile


def _padded(last: int, second: int) -> int:
    return round_up(last, LANES) * round_up(second, ROWS)


def _cost(inputs: Inputs, tiles: int) -> pl.CostEstimate:
    """Tells the compiler what a full cache costs."""
    batch, width, heads, head_width = inputs.query.shape
    kv_heads, slots = inputs.keys.shape[1:3]
    scores = batch * heads * width * (slots + width)
    moved = 2 * batch * head_width * (kv_heads * tiles * (slots + width) + heads * width) * inputs.query.dtype.itemsize
    return pl.CostEstimate(flops=4 * scores * head_width, bytes_accessed=moved, transcendentals=scores)
