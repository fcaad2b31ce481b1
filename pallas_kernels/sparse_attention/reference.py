"""What sparse attention is, written for reading: every other implementation must agree with it."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.sparse_attention.inputs import Options, Pages
from pallas_kernels.tree_attention.inputs import Inputs
from pallas_kernels.tree_attention.reference import MASKED, seen_entries


def chosen_slots(pages: Pages, page_size: int, kv_heads: int) -> tuple[Int[Array, "B K C"], Bool[Array, "B K C"]]:
    """Returns the slots of each KV head's pages, and which of these slots are really chosen."""
    batch, _, most = pages.table.shape
    read = jnp.arange(most)[None, None] < pages.counts[:, :, None]
    first = jnp.where(read, pages.table, 0) * page_size
    slot = first[..., None] + jnp.arange(page_size, dtype=jnp.int32)[None, None, None]
    chosen = jnp.broadcast_to(read[..., None], slot.shape)
    whole = (batch, kv_heads, most * page_size)
    return jnp.broadcast_to(_joined(slot), whole), jnp.broadcast_to(_joined(chosen), whole)


def seen_slots(inputs: Inputs, pages: Pages, options: Options) -> Bool[Array, "B K T C"]:
    """Returns which of a KV head's chosen slots (last axis) each entry (third axis) sees."""
    slot, chosen = chosen_slots(pages, options.page_size, inputs.keys.shape[1])
    at = jnp.take_along_axis(inputs.slot_position[:, None], slot, axis=2)[:, :, None]
    position = inputs.position[:, None, :, None]
    seen = chosen[:, :, None] & (at <= position) & inputs.valid[:, None, :, None]
    return seen & (at > position - options.window) if options.window else seen


def attend(inputs: Inputs, pages: Pages, options: Options) -> Float[Array, "B T N H"]:
    """Returns softmax(cap(scale · q kᵀ) + mask) v over chosen slots and block side by side, all of it in float32.

    Keys and values of int8 are multiplied by their slots' scales first. An entry that sees nothing gets zeros.
    """
    batch, width, heads, head_width = inputs.query.shape
    kv_heads = inputs.keys.shape[1]
    slot, _ = chosen_slots(pages, options.page_size, kv_heads)
    past = (jnp.take_along_axis(x, slot[..., None], axis=2).astype(jnp.float32) for x in (inputs.keys, inputs.values))
    if pages.scales is not None:
        scales = jnp.take_along_axis(pages.scales, slot[:, :, None], axis=3)[..., None]
        past = (x * scales[:, :, i] for i, x in enumerate(past))
    own = (x.transpose(0, 2, 1, 3).astype(jnp.float32) for x in (inputs.key, inputs.value))
    keys, values = (jnp.concatenate(both, axis=2) for both in zip(past, own, strict=True))
    query = inputs.query.reshape(batch, width, kv_heads, -1, head_width).astype(jnp.float32)
    entries = jnp.broadcast_to(seen_entries(inputs, options)[:, None], (batch, kv_heads, width, width))
    seen = jnp.concatenate([seen_slots(inputs, pages, options), entries], axis=3)[:, :, None]

    scores = jnp.einsum("BTKGH,BKSH->BKGTS", query, keys, precision="highest") * options.scale
    if options.softcap:
        scores = options.softcap * jnp.tanh(scores / options.softcap)
    scores = jnp.where(seen, scores, MASKED)
    weights = jnp.where(seen, jnp.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    weights /= jnp.where(seen.any(-1, keepdims=True), weights.sum(-1, keepdims=True), 1.0)
    out = jnp.einsum("BKGTS,BKSH->BTKGH", weights, values, precision="highest")
    return out.reshape(batch, width, heads, head_width).astype(inputs.query.dtype)


def _joined(by_page: Array) -> Array:
    return by_page.reshape(*by_page.shape[:2], -1)
