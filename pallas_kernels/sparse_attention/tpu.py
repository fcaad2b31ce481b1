"""Sparse attention for a TPU: the pages of a KV head are copied side by side, and a softmax is kept up over them.

A copy of one page is short, a step of the grid has its price, and a KV head may have chosen any number of pages. So a
step takes a block of several pages, which copies of its own bring beside each other while the step before computes, and
the grid is one list of all blocks that there are: no step of it is empty. It runs on one core of a chip that has two.

Pages of int8 are copied as they are, with their scales, and made wider just before they are multiplied. The scales then
multiply scores and weights, not keys and values: int8 is exact in bfloat16, and its product with a scale is not.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from pallas_kernels.sparse_attention import tables
from pallas_kernels.sparse_attention.inputs import Options, Pages
from pallas_kernels.sparse_attention.tpu_copies import Copies, set_of
from pallas_kernels.tree_attention.inputs import Inputs
from pallas_kernels.tree_attention.tpu import cost, entry_tiles, slots_lie_last, work_at_once
from pallas_kernels.tree_attention.tpu_softmax import LANES, ROWS, Entries, Softmax, scratch

TABLE_BYTES = 2**19
"""Bytes of the page tables and the list of blocks: half of the scalar memory of most chips."""


def unsupported(inputs: Inputs, pages: Pages, options: Options) -> str | None:
    """Returns why the kernel cannot run these shapes; None where it can."""
    slots, head_width = inputs.keys.shape[2:]
    if slots_lie_last(slots, head_width) and options.page_size % LANES:
        return (
            f"the TPU kernel needs pages of {LANES} slots at a head width of {head_width}, where a TPU has slots along "
            f"lanes; got {options.page_size}"
        )
    if pages.scales is not None and options.page_size % LANES:
        return (
            f"the TPU kernel needs pages of {LANES} slots where they are int8, since their scales lie along lanes; "
            f"got {options.page_size}"
        )
    _, block_pages = _work_at_once(inputs, pages, options)
    heads, most = pages.table.shape[0] * inputs.keys.shape[1], pages.table.shape[2]
    entries, tile = entry_tiles(inputs.query.shape[1], inputs.query.shape[2] // inputs.keys.shape[1])
    if (taken := 4 * (pages.table.size + 2 * heads * max(-(-most // block_pages), entries // tile))) > TABLE_BYTES:
        return f"the TPU kernel has {TABLE_BYTES} bytes of scalar memory for page tables; they take {taken}"
    return None


def attend(inputs: Inputs, pages: Pages, options: Options, *, interpret: Any = False) -> Float[Array, "B T N H"]:
    """Returns what the reference returns.

    Args:
      inputs, pages, options: of the call.
      interpret: as of `pallas_call`: True or `InterpretParams` runs without a TPU.
    """
    width, head_width = inputs.query.shape[1], inputs.query.shape[3]
    kv_heads, slots = inputs.keys.shape[1:3]
    size, most = options.page_size, pages.table.shape[2]
    rows, block_pages = _work_at_once(inputs, pages, options)
    entries, tile = entry_tiles(width, inputs.query.shape[2] // kv_heads)
    tiles, block, blocks = entries // tile, block_pages * size, -(-most // block_pages)
    slots_last = slots_lie_last(slots, head_width)
    pages = tables.whole(pages, slots, size)
    total, head, block_of = tables.steps(pages.counts, kv_heads, block_pages, most, tiles)
    positions = tables.chosen_positions(inputs, pages, size, blocks * block)
    mine = Entries.of(inputs, entries, tile)

    def which(r: Any, s: Any, head: Any, block_of: Any, *_: Any) -> tuple[Any, ...]:
        row, kv_head = jax.lax.div(head[s], jnp.int32(kv_heads)), jax.lax.rem(head[s], jnp.int32(kv_heads))
        return row, kv_head, r, jnp.minimum(block_of[s], tiles - 1)

    def position_index(r: Any, s: Any, head: Any, block_of: Any, *_: Any) -> tuple[Any, ...]:
        return set_of(head[s], pages.table.shape[1], kv_heads), 0, jnp.minimum(block_of[s], blocks - 1)

    def in_main_memory(array: Array) -> Array:
        return array if interpret else pltpu.with_memory_space_constraint(array, pltpu.HBM)

    def held(cache: Array) -> Array:
        return in_main_memory(cache.swapaxes(2, 3) if slots_last else cache)

    scales = [] if pages.scales is None else [pages.scales]
    fetched = pltpu.VMEM((2, head_width, block) if slots_last else (2, block, head_width), inputs.keys.dtype)
    call = pl.pallas_call(
        functools.partial(_kernel, options=options, tiles=tiles, sets=pages.table.shape[1], slots_last=slots_last),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(tiles, total),
            in_specs=[
                *mine.specs(which),
                pl.BlockSpec((None, 1, block), position_index),
                *([pl.BlockSpec(memory_space=pl.ANY)] * (2 + len(scales))),
            ],
            out_specs=mine.out_spec(which),
            scratch_shapes=[
                fetched,
                fetched,
                *(pltpu.VMEM((2, 2, block), jnp.float32) for _ in scales),
                pltpu.SemaphoreType.DMA((2,)),
                *scratch(rows, head_width, max(block, tile, ROWS), inputs.query.dtype),
            ],
        ),
        out_shape=mine.result,
        # Every page of a table is in the cache: its copies need no check, which would take longer than to start them.
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"), disable_bounds_checks=True
        ),
        cost_estimate=cost(inputs, tiles, most * size, _slot_bytes(inputs, pages)),
        name="sparse_attention",
        interpret=interpret,
    )
    out = call(
        head,
        block_of,
        pages.counts.reshape(-1),
        pages.table.reshape(-1),
        *mine.operands,
        positions.reshape(-1, 1, blocks * block),
        held(inputs.keys),
        held(inputs.values),
        *map(in_main_memory, scales),
    )
    return mine.by_entry(out)[:, :width]


def _kernel(
    head: Any,
    block_of: Any,
    count: Any,
    table: Any,
    mine: Any,
    *refs: Any,
    options: Options,
    tiles: int,
    sets: int,
    slots_last: bool,
) -> None:
    """Attends to one block of pages, and to a tile of the entries themselves in the first ones of a KV head.

    The pages of the next block are on their way meanwhile, those of another KV head too.
    """
    theirs, *others = refs if tiles > 1 else (mine, *refs)
    entry_position, words, own_position, positions, *between, arrived, queries, scores, peak, total, mixed = others
    # Between: keys, values, and scales where there are any; the result; and where pages of the former are held.
    half = len(between) // 2
    cached, out, held = between[:half], between[half], between[half + 1 :]
    softmax = Softmax(queries, scores, peak, total, mixed, options=options)
    step, last_step = pl.program_id(1), pl.num_programs(1) - 1
    now = pl.program_id(0) * pl.num_programs(1) + step
    buffer = jax.lax.rem(now, jnp.int32(2))
    copies = Copies(
        head=head,
        block_of=block_of,
        count=count,
        table=table,
        channels=tuple(zip(cached, held, (slots_last, slots_last, True), strict=False)),
        arrived=arrived,
        size=options.page_size,
        sets=sets,
        block_pages=positions.shape[1] // options.page_size,
    )

    @pl.when(now == 0)
    def _start() -> None:
        copies.clear()
        copies.fetch(step, buffer)

    @pl.when(now < pl.num_programs(0) * pl.num_programs(1) - 1)
    def _fetch_next() -> None:
        copies.fetch(jnp.where(step == last_step, 0, step + 1), 1 - buffer)

    @pl.when(block_of[step] == 0)
    def _begin() -> None:
        softmax.begin(mine)

    @pl.when(block_of[step] < tiles)
    def _own() -> None:
        softmax.absorb_entries(theirs, words, own_position, entry_position)

    @pl.when(copies.pages_at(step)[1] > 0)
    def _chosen() -> None:
        copies.wait(step, buffer)
        position = positions[...]
        seen = softmax.within(position <= entry_position[...], position, entry_position)
        keys, values, *scales = (x[buffer] for x in held)
        by_slot = (scales[0][:1], scales[0][1:]) if scales else None
        softmax.absorb(keys, values, seen, last=slots_last, scales=by_slot)

    @pl.when((step == last_step) | (block_of[step + 1] == 0))
    def _end() -> None:
        softmax.end(out)


def _work_at_once(inputs: Inputs, pages: Pages, options: Options) -> tuple[int, int]:
    """Returns the rows that are worked on at once, and the pages of a block."""
    width, heads = inputs.query.shape[1:3]
    slots = pages.table.shape[2] * options.page_size
    rows, block = work_at_once(width, heads // inputs.keys.shape[1], slots, _slot_bytes(inputs, pages))
    return rows, block // options.page_size


def _slot_bytes(inputs: Inputs, pages: Pages) -> int:
    """Returns the bytes of a slot's key and value in one KV head, their scales included."""
    return 2 * (inputs.keys.shape[3] * inputs.keys.dtype.itemsize + (0 if pages.scales is None else 4))
