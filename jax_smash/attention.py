"""Attention of a block of new entries over the cache and over the block itself."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block, LayerCache

MASKED = -1e30
"""Score of what a query may not see: finite, so that a query that sees nothing stays free of NaN."""


def attend(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    position: Int[Array, "B T"],
    cache: LayerCache | None,
    block: Block,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> Float[Array, "B T N H"]:
    """Returns attention of each entry over the committed slots before it and the block's entries it may see.

    Equivalent formula: softmax(cap(scale · q kᵀ) + mask) v over the concatenation of cache and block, in float32.

    Args:
      query, key, value: of the new entries, the rotary embedding already in.
      position: position of each new entry.
      cache: what the layer has committed; None where there is nothing.
      block: which new entries see which.
      scale: multiplies the scores.
      window: an entry sees positions later than its own minus this; 0 for no window.
      softcap: scores become cap · tanh(score / cap); 0 for none.
    """
    batch, width, heads, head_width = query.shape
    groups = heads // key.shape[2]
    query = query.reshape(batch, width, key.shape[2], groups, head_width)

    def capped(scores: Array) -> Array:
        scores = scores.astype(jnp.float32) * scale
        return softcap * jnp.tanh(scores / softcap) if softcap else scores

    seen = block.mask()
    if window:
        seen &= position[:, None, :] > position[:, :, None] - window
    scores = capped(jnp.einsum("BTKGH,BUKH->BKGTU", query, key, preferred_element_type=jnp.float32))
    scores = jnp.where(seen[:, None, None], scores, MASKED)
    if cache is None:
        weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
        out = jnp.einsum("BKGTU,BUKH->BTKGH", weights, value)
        return out.reshape(batch, width, heads, head_width)

    # An empty slot's position is after every query's, so one comparison hides empty slots too.
    visible = cache.position[:, None, :] <= position[:, :, None]
    if window:
        visible &= cache.position[:, None, :] > position[:, :, None] - window
    past = capped(jnp.einsum("BTKGH,BKSH->BKGTS", query, cache.keys, preferred_element_type=jnp.float32))
    past = jnp.where(visible[:, None, None], past, MASKED)
    peak = jnp.maximum(past.max(-1, keepdims=True), scores.max(-1, keepdims=True))
    past, scores = jnp.exp(past - peak), jnp.exp(scores - peak)
    total = past.sum(-1) + scores.sum(-1)
    out = jnp.einsum(
        "BKGTS,BKSH->BTKGH", past.astype(value.dtype), cache.values, preferred_element_type=jnp.float32
    ) + jnp.einsum("BKGTU,BUKH->BTKGH", scores.astype(value.dtype), value, preferred_element_type=jnp.float32)
    out = out / total.transpose(0, 3, 1, 2)[..., None]
    return out.astype(value.dtype).reshape(batch, width, heads, head_width)
