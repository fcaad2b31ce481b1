"""What tree attention is, written for reading: every other implementation must agree with it."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pallas_kernels.tree_attention.inputs import Inputs, Options

MASKED = -1e30
"""Score of what an entry may not see: finite, so that an entry that sees nothing stays free of NaN."""


def seen_slots(inputs: Inputs, options: Options) -> Bool[Array, "B T S"]:
    """Returns which of the cache's slots (last axis) each entry (middle axis) sees."""
    position, slot = inputs.position[:, :, None], inputs.slot_position[:, None, :]
    seen = (slot <= position) & inputs.valid[:, :, None]
    return seen & (slot > position - options.window) if options.window else seen


def seen_entries(inputs: Inputs, options: Options) -> Bool[Array, "B T T"]:
    """Returns which of the block's entries (last axis) each entry (middle axis) sees."""
    entry = jnp.arange(inputs.position.shape[1], dtype=jnp.uint32)
    words = inputs.ancestors[:, :, entry // 32]
    seen = ((words >> (entry % 32)[None, None]) & 1).astype(bool)
    seen &= inputs.valid[:, :, None] & inputs.valid[:, None, :]
    position = inputs.position
    return seen & (position[:, None, :] > position[:, :, None] - options.window) if options.window else seen


def attend(inputs: Inputs, options: Options) -> Float[Array, "B T N H"]:
    """Returns softmax(cap(scale · q kᵀ) + mask) v over cache and block side by side, all of it in float32.

    An entry that sees nothing gets zeros.
    """
    batch, width, heads, head_width = inputs.query.shape
    keys = jnp.concatenate([inputs.keys, inputs.key.transpose(0, 2, 1, 3)], axis=2).astype(jnp.float32)
    values = jnp.concatenate([inputs.values, inputs.value.transpose(0, 2, 1, 3)], axis=2).astype(jnp.float32)
    query = inputs.query.reshape(batch, width, keys.shape[1], -1, head_width).astype(jnp.float32)
    seen = jnp.concatenate([seen_slots(inputs, options), seen_entries(inputs, options)], axis=2)[:, None, None]

    scores = jnp.einsum("BTKGH,BKSH->BKGTS", query, keys, precision="highest") * options.scale
    if options.softcap:
        scores = options.softcap * jnp.tanh(scores / options.softcap)
    scores = jnp.where(seen, scores, MASKED)
    weights = jnp.where(seen, jnp.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    weights /= jnp.where(seen.any(-1, keepdims=True), weights.sum(-1, keepdims=True), 1.0)
    out = jnp.einsum("BKGTS,BKSH->BTKGH", weights, values, precision="highest")
    return out.reshape(batch, width, heads, head_width).astype(inputs.query.dtype)
