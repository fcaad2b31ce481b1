"""What predictors make of entries, and the scores that follow from it."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.pytree import pytree


@pytree
class Importance:
    """Queries and keys of predicted attention, over a block without a past.

    Attributes:
      queries: of every entry and layer, n of them.
      keys: of every entry, or of every page, k of them; each serves n / k queries.
    """

    queries: Float[Array, "L B T n d"]
    keys: Float[Array, "L B S k d"]


@pytree
class RoundedKeys:
    """Keys rounded to whole numbers, with a scale for each.

    Attributes:
      values: from −127 to 127 as int8, or from −7 to 7 as int4.
      scale: what they are multiplied by.
    """

    values: Int[Array, "B S k d"]
    scale: Float[Array, "B S k"]


def int8_keys(keys: Float[Array, "B S k d"]) -> RoundedKeys:
    """Returns keys in a byte a number: round(key / scale), where 127 · scale is the largest magnitude in a key."""
    return _rounded(keys, 127, jnp.int8, jnp.float32)


def int4_keys(keys: Float[Array, "B S k d"]) -> RoundedKeys:
    """Returns keys in half a byte a number: the same with 7 in place of 127, and the scale in bfloat16."""
    return _rounded(keys, 7, jnp.int4, jnp.bfloat16)


def _rounded(keys: Float[Array, "B S k d"], most: int, dtype: Any, scale_dtype: Any) -> RoundedKeys:
    wide = keys.astype(jnp.float32)
    scale = (jnp.maximum(jnp.abs(wide).max(-1), jnp.float32(1e-12)) / most).astype(scale_dtype)
    # A scale that was rounded down makes the largest number a little more than the most.
    value = jnp.clip(jnp.round(wide / scale.astype(jnp.float32)[..., None]), -most, most)
    return RoundedKeys(values=value.astype(dtype), scale=scale)


def importance(queries: Float[Array, "B Q n d"], keys: Any, dtype: Any = jnp.float32) -> Float[Array, "B k G Q S"]:
    """Returns the score of every slot or page for every query: q · k / √d. No mask is in it.

    Args:
      queries: n = k · G of them, G for each key.
      keys: `[B, S, k, d]`, or `RoundedKeys`.
      dtype: of products and scores.
    """
    values = keys.values if isinstance(keys, RoundedKeys) else keys
    batch, width, _, d = queries.shape
    by_key = queries.reshape(batch, width, values.shape[2], -1, d).astype(dtype)
    found = jnp.einsum("BQKGD,BSKD->BKGQS", by_key, values.astype(dtype)) * jnp.asarray(d**-0.5, dtype)
    if isinstance(keys, RoundedKeys):
        found *= keys.scale.astype(dtype).transpose(0, 2, 1)[:, :, None, None]
    return found
