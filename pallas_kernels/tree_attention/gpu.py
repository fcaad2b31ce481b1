"""Tree attention for a Hopper GPU, on Mosaic GPU: a warpgroup takes 64 rows of a KV head and a part of the cache.

Up to three warpgroups share the blocks that another one fetches, so that a block is read once for 192 rows, and one's
softmax runs beside another's products. A draft tree has few rows: the cache is split over the multiprocessors, and the
parts' softmaxes are joined behind. The kernel has run interpreted and has been lowered; it is not tuned.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from pallas_kernels.tree_attention.gpu_tiles import BLOCK, TILE, along_rows, down_columns, product, unpacked
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

SHARED_BYTES = 100_000
"""Of shared memory for blocks on their way: three of 64 slots at a head width of 128."""

REGISTERS = {1: None, 2: (232, 40), 3: (152, 40)}
"""Of a thread that attends and of one that fetches, by the warpgroups that attend; None leaves them as they are."""

MULTIPROCESSORS = 132
"""Of an H100: about as many parts are made."""

HOPPER = "9.0"
HIDDEN = 2**30
"""Position of a column that no row sees."""


def unsupported(inputs: Inputs) -> str | None:
    """Returns why the kernel cannot run these shapes, or on the GPU that is at hand; None where it can."""
    head_width, dtype = inputs.query.shape[3], inputs.query.dtype
    if dtype != jnp.bfloat16:
        # Hopper's matrix units would round float32 to ten bits.
        return f"the GPU kernel needs bfloat16; got {dtype}"
    if head_width % 64 or head_width > 256:
        return f"the GPU kernel needs a head width of 64, 128, 192 or 256; got {head_width}"
    if (slots := inputs.keys.shape[2]) % 8:
        return f"the GPU kernel needs slots in multiples of 8, the rows of a tile in shared memory; got {slots}"
    if not hasattr(plgpu, "InterpretGPUParams"):
        return "the GPU kernel needs jax 0.12 or newer"
    if jax.default_backend() == "gpu" and (device := jax.devices()[0]).compute_capability != HOPPER:
        return f"the GPU kernel needs compute capability {HOPPER}; {device.device_kind} has {device.compute_capability}"
    return None


def attend(inputs: Inputs, options: Options, *, interpret: Any = False) -> Float[Array, "B T N H"]:
    """Returns what the reference returns.

    Needs a Hopper GPU: its matrix product from shared memory (wgmma) and its bulk copies (TMA).

    Args:
      inputs, options: of the call.
      interpret: True or `InterpretGPUParams` runs without a GPU.
    """
    order, count = needed_blocks(inputs, options, BLOCK)
    slot_position = _block_positions(inputs.slot_position)
    return attend_pieces(inputs, options, order[:, None], count[:, None], slot_position, interpret=interpret)


def attend_pieces(
    inputs: Inputs,
    options: Options,
    order: Int[Array, "B Sets Pieces"],
    count: Int[Array, "B Sets"],
    slot_position: Int[Array, "B Padded"],
    *,
    piece: int = BLOCK,
    interpret: Any = False,
) -> Float[Array, "B T N H"]:
    """Returns attention over pieces of the cache, as many as fill a block at a time.

    Args:
      inputs, options: of the call.
      order: numbers of the pieces that are read, in sets that a KV head has for itself, or one for all.
      count: blocks of each set that are read.
      slot_position: of each slot of each piece. A piece that would end behind the cache is read further in front.
      piece: slots of a piece: 64, or less and a divisor of that.
      interpret: True or `InterpretGPUParams` runs without a GPU.
    """
    batch, width, heads, head_width = inputs.query.shape
    kv_heads = inputs.keys.shape[1]
    warpgroups, tiles = _split(width * heads // kv_heads, head_width)
    rows, columns = tiles * warpgroups * TILE, round_up(width, BLOCK)
    groups = batch * kv_heads
    parts = max(1, min(MULTIPROCESSORS // (groups * tiles), order.shape[2] * piece // BLOCK))
    part = (parts, batch, kv_heads, rows)
    kernel = functools.partial(_kernel, options=options, parts=parts, kv_heads=kv_heads, warpgroups=warpgroups)
    call = plgpu.kernel(  # type: ignore[call-arg]
        functools.partial(kernel, piece=piece),
        out_type=(
            jax.ShapeDtypeStruct((*part, head_width), jnp.float32),
            jax.ShapeDtypeStruct(part, jnp.float32),
            jax.ShapeDtypeStruct(part, jnp.float32),
        ),
        grid=(parts, tiles, groups),
        grid_names=("part", "tile", "group"),
        num_threads=warpgroups + 1,
        thread_name="warpgroup",
        scratch_types=_scratch(warpgroups, head_width, inputs.query.dtype, BLOCK // piece),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
        interpret=plgpu.InterpretGPUParams() if interpret is True else interpret or None,  # type: ignore[attr-defined]
    )
    mixed, peak, total = call(
        order,
        count,
        query_rows(inputs.query, kv_heads, rows),
        row_positions(inputs, rows),
        row_words(inputs, rows, columns // WORD).astype(jnp.int32).transpose(0, 2, 1),
        own_positions(inputs.position, columns),
        head_major(inputs.key, columns),
        head_major(inputs.value, columns),
        slot_position,
        _at_least_a_block(inputs.keys),
        _at_least_a_block(inputs.values),
    )
    return entries(_joined(mixed, peak, total).astype(inputs.query.dtype), width, heads)


def _kernel(
    order: Any,
    count: Any,
    query_rows_in: Any,
    row_position: Any,
    words: Any,
    own_position: Any,
    own_key: Any,
    own_value: Any,
    slot_position: Any,
    keys: Any,
    values: Any,
    mixed_out: Any,
    peak_out: Any,
    total_out: Any,
    query_held: Any,
    key_held: Any,
    value_held: Any,
    weights_held: Any,
    position_held: Any,
    row_held: Any,
    arrived: Any,
    left: Any,
    query_arrived: Any,
    *,
    options: Options,
    parts: int,
    kv_heads: int,
    warpgroups: int,
    piece: int,
) -> None:
    """Reads one part of a row's blocks for some tiles of a KV head: one warpgroup fetches, the others attend."""
    part, tile, group, warpgroup = (jax.lax.axis_index(name) for name in ("part", "tile", "group", "warpgroup"))
    buffers, head_width = key_held.shape[0], key_held.shape[2]
    row, head = jax.lax.div(group, jnp.int32(kv_heads)), jax.lax.rem(group, jnp.int32(kv_heads))
    which = head if order.shape[1] > 1 else 0
    # The first part reads the block's own entries, too, before any slot.
    own_blocks = jnp.where(part == 0, own_key.shape[2] // BLOCK, 0)
    all_blocks = own_blocks + jax.lax.div(count[row, which] - part + parts - 1, jnp.int32(parts))

    def buffer_of(i: Array) -> Array:
        return jax.lax.rem(i, jnp.int32(buffers))

    def fetch(i: Array) -> None:
        """Reads the i-th block's positions, keys and values once the attending warpgroups have left its buffer."""
        buffer = buffer_of(i)
        barrier = arrived.at[buffer]

        def read(position: Any, key: Any, value: Any, at: Array, start: Array, to: Any) -> None:
            slots = pl.ds(start, piece)
            plgpu.copy_gmem_to_smem(position.at[row, pl.ds(at, piece)], position_held.at[buffer, to], barrier)
            plgpu.copy_gmem_to_smem(key.at[row, head, slots], key_held.at[buffer, to], barrier)
            plgpu.copy_gmem_to_smem(value.at[row, head, slots], value_held.at[buffer, to], barrier)

        @pl.when(i >= buffers)
        def _() -> None:
            plgpu.barrier_wait(left.at[buffer])

        pieces = [pl.ds(start, piece) for start in range(0, BLOCK, piece)]

        @pl.when(i < own_blocks)
        def _() -> None:
            for to in pieces:
                at = i * BLOCK + to.start
                read(own_position, own_key, own_value, at, at, to)

        @pl.when(i >= own_blocks)
        def _() -> None:
            first = (part + (i - own_blocks) * parts) * len(pieces)
            for j, to in enumerate(pieces):
                at = order[row, which, first + j] * piece
                read(slot_position, keys, values, at, jnp.minimum(at, keys.shape[2] - piece), to)

    @pl.when(warpgroup == warpgroups)
    def _() -> None:
        _set_registers(warpgroups, 1)
        jax.lax.fori_loop(0, all_blocks, lambda i, _: fetch(i), None)

    @pl.when(warpgroup < warpgroups)
    def _() -> None:
        _set_registers(warpgroups, 0)
        at = pl.ds((tile * warpgroups + warpgroup) * TILE, TILE)
        query, weights_at, reader_at = query_held.at[warpgroup], weights_held.at[warpgroup], row_held.at[warpgroup]
        queried = query_arrived.at[warpgroup]

        def absorb(i: Array, carry: tuple[Array, ...], bits: Any) -> tuple[Array, ...]:
            """Adds a block to the softmax once it has arrived; `bits` tell what is seen of the block's own entries."""
            buffer = buffer_of(i)
            plgpu.barrier_wait(arrived.at[buffer])
            mixed, peak, total = carry
            position = along_rows(position_held[buffer])
            reader = down_columns(reader_at[...], BLOCK)
            seen = bits if bits is not None else position <= reader
            if options.window:
                seen &= position > reader - options.window
            scores = product(query, key_held.at[buffer].transpose((1, 0)), BLOCK) * options.scale
            if options.softcap:
                scores = options.softcap * jnp.tanh(scores / options.softcap)
            scores = jnp.where(seen, scores, MASKED)
            highest = jnp.maximum(peak, scores.max(1))
            weights = jnp.where(seen, jnp.exp(scores - down_columns(highest, BLOCK)), 0.0)
            fade = jnp.exp(peak - highest)
            total = fade * total + weights.sum(1)
            mixed = down_columns(fade, head_width) * mixed
            weights_at[...] = weights.astype(weights_held.dtype)
            plgpu.commit_smem()
            mixed += product(weights_at, value_held.at[buffer], head_width)
            plgpu.barrier_arrive(left.at[buffer])
            return mixed, highest, total

        def own(i: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
            seen = [words.at[row, BLOCK // WORD * i + j, at] for j in range(BLOCK // WORD)]
            return absorb(i, carry, unpacked([plgpu.load(word, optimized=False) for word in seen]))  # type: ignore[call-arg]

        plgpu.copy_gmem_to_smem(query_rows_in.at[row, head, at], query, queried)
        plgpu.copy_gmem_to_smem(row_position.at[row, at], reader_at, queried)
        plgpu.barrier_wait(queried)
        carry = (
            jnp.zeros((TILE, head_width), jnp.float32),
            jnp.full((TILE,), MASKED, jnp.float32),
            jnp.zeros((TILE,), jnp.float32),
        )
        carry = jax.lax.fori_loop(0, own_blocks, own, carry)
        carry = jax.lax.fori_loop(own_blocks, all_blocks, lambda i, carry: absorb(i, carry, None), carry)
        # From registers: the shared memory is full where heads are wide.
        for out, found in zip((mixed_out, peak_out, total_out), carry, strict=True):
            plgpu.store(out.at[part, row, head, at], found, optimized=False)  # type: ignore[attr-defined]


def _split(rows: int, head_width: int) -> tuple[int, int]:
    """Returns how many warpgroups attend together, and how often they must to take all rows, with least padding."""
    # A tile of wide heads takes more registers than a third of a multiprocessor has.
    most = 3 if head_width <= 128 else 2
    tiles = -(-rows // TILE)
    times = -(-tiles // most)
    return -(-tiles // times), times


def _set_registers(warpgroups: int, role: int) -> None:
    """Divides the registers between threads that attend (role 0) and that fetch (role 1)."""
    if found := REGISTERS[warpgroups]:
        plgpu.set_max_registers(found[role], action=("increase", "decrease")[role])


def _scratch(warpgroups: int, head_width: int, dtype: Any, pieces: int) -> list[Any]:
    """Returns what a multiprocessor's shared memory holds, in the kernel's order."""
    buffers = 3 if 3 * 2 * BLOCK * head_width * 2 <= SHARED_BYTES else 2
    swizzled = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    return [
        plgpu.SMEM((warpgroups, TILE, head_width), dtype, transforms=swizzled),
        plgpu.SMEM((buffers, BLOCK, head_width), dtype, transforms=swizzled),
        plgpu.SMEM((buffers, BLOCK, head_width), dtype, transforms=swizzled),
        plgpu.SMEM((warpgroups, TILE, BLOCK), dtype, transforms=swizzled),
        plgpu.SMEM((buffers, BLOCK), jnp.int32),
        plgpu.SMEM((warpgroups, TILE), jnp.int32),
        plgpu.Barrier(num_arrivals=3 * pieces, num_barriers=buffers),
        plgpu.Barrier(num_arrivals=warpgroups, num_barriers=buffers),
        plgpu.Barrier(num_arrivals=2, num_barriers=warpgroups),
    ]


def _block_positions(position: Int[Array, "B S"]) -> Int[Array, "B Padded"]:
    """Returns the slots' positions block by block, as the kernel reads the slots.

    It reads a last block that would end behind the cache further in front; what the block before has is hidden.
    """
    slots = position.shape[1]
    padded, whole = round_up(slots, BLOCK), slots // BLOCK * BLOCK
    if slots < BLOCK or padded == slots:
        return jnp.pad(position, ((0, 0), (0, padded - slots)), constant_values=HIDDEN)
    hidden = jnp.full((position.shape[0], padded - slots), HIDDEN, jnp.int32)
    return jnp.concatenate([position[:, :whole], hidden, position[:, whole:]], axis=1)


def _at_least_a_block(cached: Float[Array, "B K S H"]) -> Float[Array, "B K _ H"]:
    short = max(0, BLOCK - cached.shape[2])
    return jnp.pad(cached, ((0, 0), (0, 0), (0, short), (0, 0))) if short else cached


def _joined(
    mixed: Float[Array, "parts B K R H"], peak: Float[Array, "parts B K R"], total: Float[Array, "parts B K R"]
) -> Float[Array, "B K R H"]:
    """Joins the parts' softmaxes."""
    share = jnp.exp(peak - peak.max(0, keepdims=True))
    everything = (share * total).sum(0)
    return (share[..., None] * mixed).sum(0) / jnp.where(everything > 0, everything, 1.0)[..., None]
