"""Sparse attention for a Hopper GPU: tree attention's kernel, which reads chosen pages in place of the cache's blocks.

It has run interpreted and has been lowered; it is not tuned.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.sparse_attention import tables
from pallas_kernels.sparse_attention.inputs import Options, Pages
from pallas_kernels.tree_attention import gpu
from pallas_kernels.tree_attention.inputs import Inputs


def unsupported(inputs: Inputs, pages: Pages, options: Options) -> str | None:
    """Returns why the kernel cannot run these shapes, or on the GPU that is at hand; None where it can."""
    if pages.scales is not None:
        return f"the GPU kernel reads no cache of {inputs.keys.dtype}"
    return gpu.unsupported(inputs)


def attend(inputs: Inputs, pages: Pages, options: Options, *, interpret: Any = False) -> Float[Array, "B T N H"]:
    """Returns what the reference returns.

    A block is filled with pages, or with a part of one.

    Args:
      inputs, pages, options: of the call.
      interpret: True or `InterpretGPUParams` runs without a GPU.
    """
    slots, size = inputs.keys.shape[2], options.page_size
    piece = min(size, gpu.BLOCK)
    parts, batch, sets = size // piece, *pages.counts.shape
    pages = tables.whole(pages, slots, size)
    within = jnp.arange(parts, dtype=jnp.int32)[None, None, None]
    numbers = (pages.table[..., None] * parts + within).reshape(batch, sets, -1)
    chosen = jnp.arange(numbers.shape[2], dtype=jnp.int32)[None, None] < pages.counts[:, :, None] * parts
    # Behind the last page comes a piece of slots that are hidden, until the block is full.
    hidden = slots // piece
    short = -numbers.shape[2] % (gpu.BLOCK // piece)
    order = jnp.pad(jnp.where(chosen, numbers, hidden), ((0, 0), (0, 0), (0, short)), constant_values=hidden)
    return gpu.attend_pieces(
        inputs,
        options,
        order,
        (pages.counts * size + gpu.BLOCK - 1) // gpu.BLOCK,
        jnp.pad(inputs.slot_position, ((0, 0), (0, piece)), constant_values=tables.HIDDEN),
        piece=piece,
        interpret=interpret,
    )
