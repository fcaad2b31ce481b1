"""Attention of a block of new entries over the cache and over the block itself."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Block, LayerCache

MASKED = -1e30
"""Score of what a query may not see: finite, so that a query that sees nothing stays free of NaN."""

QUERIES_AT_ONCE = 64
"""Queries whose scores are in memory at once where there is no cache, as in training."""


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
    if cache is None:
        out = _attend_without_past(query, key, value, seen, capped)
        return out.reshape(batch, width, heads, head_width)
    scores = capped(jnp.einsum("BTKGH,BUKH->BKGTU", query, key, preferred_element_type=jnp.float32))
    scores = jnp.where(seen[:, None, None], scores, MASKED)

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


def _attend_without_past(
    query: Float[Array, "B T K G H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    seen: Bool[Array, "B T T"],
    capped: Callable[[Array], Array],
) -> Float[Array, "B T K G H"]:
    """Attends within a block, some queries at a time.

    A block's entries see no later ones, so a piece of queries meets only the keys up to its end. The backward pass
    makes each piece's scores again: what a training step keeps and moves is linear in T.
    """
    query, key, value = query.transpose(0, 2, 3, 1, 4), key.transpose(0, 2, 1, 3), value.transpose(0, 2, 1, 3)

    @jax.checkpoint
    def attend_piece(query: Array, key: Array, value: Array, seen: Array) -> Array:
        scores = capped(jnp.einsum("BKGTH,BKUH->BKGTU", query, key, preferred_element_type=jnp.float32))
        weights = jax.nn.softmax(jnp.where(seen[:, None, None], scores, MASKED), axis=-1).astype(value.dtype)
        return jnp.einsum("BKGTU,BKUH->BKGTH", weights, value)

    pieces = []
    for start in range(0, query.shape[3], QUERIES_AT_ONCE):
        end = min(start + QUERIES_AT_ONCE, query.shape[3])
        pieces.append(
            attend_piece(query[:, :, :, start:end], key[:, :, :end], value[:, :, :end], seen[:, start:end, :end])
        )
    return jnp.concatenate(pieces, axis=3).transpose(0, 3, 1, 2, 4)
