"""Page tables as kernels take them."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from pallas_kernels.sparse_attention.inputs import Pages
from pallas_kernels.tree_attention.inputs import Inputs

HIDDEN = 2**30
"""Position of a slot that no entry sees."""


def whole(pages: Pages, slots: int, page_size: int) -> Pages:
    """Returns the pages with counts of at most P, numbers of pages that there are, and page 0 behind the count."""
    count = jnp.clip(pages.counts, 0, pages.table.shape[2])
    read = jnp.arange(pages.table.shape[2], dtype=jnp.int32)[None, None] < count[:, :, None]
    return pages._replace(table=jnp.where(read, jnp.clip(pages.table, 0, slots // page_size - 1), 0), counts=count)


def chosen_positions(inputs: Inputs, pages: Pages, page_size: int, slots: int) -> Int[Array, "B Sets C"]:
    """Returns the positions of the chosen slots page by page, filled up to so many; `HIDDEN` behind the count.

    Of slots that all entries see, 0: to look positions up takes a TPU longer than to read the pages.
    """
    batch, sets, most = pages.table.shape
    if pages.filled is not None:
        seen = jnp.minimum(pages.filled, pages.counts * page_size)[:, :, None]
        return jnp.where(jnp.arange(slots, dtype=jnp.int32)[None, None] < seen, 0, HIDDEN)
    by_page = inputs.slot_position.reshape(batch, 1, -1, page_size)
    read = jnp.arange(most, dtype=jnp.int32)[None, None] < pages.counts[:, :, None]
    found = jnp.take_along_axis(by_page, pages.table[..., None], axis=2, mode="promise_in_bounds")
    found = jnp.where(read[..., None], found, HIDDEN).reshape(batch, sets, -1)
    return jnp.pad(found, ((0, 0), (0, 0), (0, slots - found.shape[2])), constant_values=HIDDEN)


def steps(
    count: Int[Array, "B Sets"], kv_heads: int, block_pages: int, most_pages: int, least: int
) -> tuple[Int[Array, ""], Int[Array, "Steps"], Int[Array, "Steps"]]:
    """Returns how many steps read all blocks of pages, and of each step the KV head, counted over all rows, and block.

    A KV head has as many steps as its pages make blocks, however many another one has, in order.

    Args:
      count: pages of each set.
      kv_heads: K.
      block_pages: pages of a block.
      most_pages: that a set can have, P.
      least: steps of a KV head without pages.

    Returns:
      the number of steps; two arrays with one place more than there can be steps, 0 behind the last step.
    """
    blocks = jnp.maximum((count + block_pages - 1) // block_pages, least)
    by_head = jnp.broadcast_to(blocks, (count.shape[0], kv_heads)).reshape(-1)
    ends = jax.lax.cumsum(by_head)
    step = jnp.arange(by_head.size * max(-(-most_pages // block_pages), least) + 1, dtype=jnp.int32)
    real = step < ends[-1]
    head = jnp.where(real, (ends[None] <= step[:, None]).sum(1, dtype=jnp.int32), 0)
    return ends[-1], head, jnp.where(real, step - (ends - by_head)[head], 0)
