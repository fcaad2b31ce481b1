"""Sparse attention in XLA's own operations: what runs where no kernel does."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num, Shaped

from pallas_kernels.sparse_attention import tables
from pallas_kernels.sparse_attention.inputs import Options, Pages
from pallas_kernels.tree_attention import xla
from pallas_kernels.tree_attention.inputs import Inputs


def attend(inputs: Inputs, pages: Pages, options: Options) -> Float[Array, "B T N H"]:
    """Returns what the reference returns: tree attention over the chosen slots, gathered.

    Each KV head becomes a batch row of its own, since each has slots of its own.
    """
    batch, width, heads, head_width = inputs.query.shape
    kv_heads, slots = inputs.keys.shape[1:3]
    pages = tables.whole(pages, slots, options.page_size)
    chosen = pages.table.shape[2] * options.page_size
    position = tables.chosen_positions(inputs, pages, options.page_size, chosen)

    def by_head(entries: Float[Array, "B T X H"]) -> Float[Array, "R T Y H"]:
        apart = entries.reshape(batch, width, kv_heads, -1, head_width).transpose(0, 2, 1, 3, 4)
        return apart.reshape(batch * kv_heads, width, -1, head_width)

    def gathered(cached: Num[Array, "B K S X"]) -> Num[Array, "R 1 C X"]:
        by_page = cached.reshape(batch, kv_heads, -1, options.page_size, cached.shape[3])
        found = jnp.take_along_axis(by_page, pages.table[..., None, None], axis=2, mode="promise_in_bounds")
        return found.reshape(batch * kv_heads, 1, chosen, cached.shape[3])

    def each(row: Shaped[Array, "B ..."]) -> Shaped[Array, "R ..."]:
        return jnp.repeat(row, kv_heads, axis=0)

    scales = None
    if pages.scales is not None:
        scales = gathered(pages.scales[:, :, 0, :, None])[..., 0], gathered(pages.scales[:, :, 1, :, None])[..., 0]
    out = xla.attend(
        Inputs(
            query=by_head(inputs.query),
            key=by_head(inputs.key),
            value=by_head(inputs.value),
            position=each(inputs.position),
            valid=each(inputs.valid),
            ancestors=each(inputs.ancestors),
            keys=gathered(inputs.keys),
            values=gathered(inputs.values),
            slot_position=jnp.broadcast_to(position, (batch, kv_heads, chosen)).reshape(-1, chosen),
        ),
        options,
        scales,
    )
    apart = out.reshape(batch, kv_heads, width, -1, head_width).transpose(0, 2, 1, 3, 4)
    return apart.reshape(batch, width, heads, head_width)
