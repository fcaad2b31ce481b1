"""Tree attention in XLA's own operations: what runs where no kernel does."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.tree_attention.inputs import Inputs, Options
from pallas_kernels.tree_attention.reference import MASKED, seen_entries, seen_slots


def attend(inputs: Inputs, options: Options, scales: tuple[Array, Array] | None = None) -> Float[Array, "B T N H"]:
    """Returns what the reference returns, without joining cache and block: joining them would copy the cache.

    Args:
      inputs, options: of the call.
      scales: of each slot's key and value, `[B, K, S]`, where the cache is int8.
    """
    batch, width, heads, head_width = inputs.query.shape
    query = inputs.query.reshape(batch, width, inputs.key.shape[2], -1, head_width).transpose(0, 2, 3, 1, 4)
    key, value = inputs.key.transpose(0, 2, 1, 3), inputs.value.transpose(0, 2, 1, 3)

    keys, values = inputs.keys.astype(query.dtype), inputs.values.astype(query.dtype)
    key_scale, value_scale = scales or (None, None)
    past = _scores(query, keys, options, key_scale)
    own = _scores(query, key, options)
    past_seen, own_seen = seen_slots(inputs, options)[:, None, None], seen_entries(inputs, options)[:, None, None]
    past, own = jnp.where(past_seen, past, MASKED), jnp.where(own_seen, own, MASKED)
    peak = jnp.maximum(past.max(-1, keepdims=True), own.max(-1, keepdims=True))
    past = jnp.where(past_seen, jnp.exp(past - peak), 0.0)
    own = jnp.where(own_seen, jnp.exp(own - peak), 0.0)
    total = past.sum(-1, keepdims=True) + own.sum(-1, keepdims=True)
    out = (_mixed(past, values, value_scale) + _mixed(own, value)) / jnp.where(total > 0, total, 1.0)
    return out.astype(value.dtype).transpose(0, 3, 1, 2, 4).reshape(batch, width, heads, head_width)


def _scores(
    query: Float[Array, "B K G T H"],
    keys: Float[Array, "B K X H"],
    options: Options,
    scale: Float[Array, "B K X"] | None = None,
) -> Float[Array, "B K G T X"]:
    scores = jnp.einsum("BKGTH,BKXH->BKGTX", query, keys, preferred_element_type=jnp.float32) * options.scale
    if scale is not None:
        scores *= scale[:, :, None, None]
    return options.softcap * jnp.tanh(scores / options.softcap) if options.softcap else scores


def _mixed(
    weights: Float[Array, "B K G T X"], values: Float[Array, "B K X H"], scale: Float[Array, "B K X"] | None = None
) -> Float[Array, "B K G T H"]:
    if scale is not None:
        weights *= scale[:, :, None, None]
    return jnp.einsum("BKGTX,BKXH->BKGTH", weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
