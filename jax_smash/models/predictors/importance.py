"""What predictors make of entries, and the scores that follow from it."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int8, UInt8

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
class Int8Keys:
    """Keys rounded to 255 levels, with a scale for each.

    Attributes:
      values: from −127 to 127.
      scale: what they are multiplied by.
    """

    values: Int8[Array, "B S k d"]
    scale: Float[Array, "B S k"]

    @property
    def numbers(self) -> Float[Array, "B S k d"]:
        """The values as float32."""
        return self.values.astype(jnp.float32)


@pytree
class Int4Keys:
    """Keys rounded to 15 levels, two numbers in a byte, with a scale for each.

    Attributes:
      packed: of each byte the low half is 8 + a number of the first half of a key, the high half 8 + one of the second.
      scale: what numbers, which are from −7 to 7, are multiplied by; bfloat16.
    """

    packed: UInt8[Array, "B S k half"]
    scale: Float[Array, "B S k"]

    @property
    def numbers(self) -> Float[Array, "B S k d"]:
        """The numbers as float32."""
        halves = jnp.concatenate([self.packed & 15, self.packed >> 4], axis=-1)
        return halves.astype(jnp.float32) - 8.0


ROUNDED = Int8Keys | Int4Keys
"""Keys with a scale each."""


def int8_keys(keys: Float[Array, "B S k d"]) -> Int8Keys:
    """Returns keys in a byte a number: round(key / scale), where 127 · scale is the largest magnitude in a key."""
    wide = keys.astype(jnp.float32)
    scale = jnp.maximum(jnp.abs(wide).max(-1), jnp.float32(1e-12)) / 127
    return Int8Keys(values=jnp.round(wide / scale[..., None]).astype(jnp.int8), scale=scale)


def int4_keys(keys: Float[Array, "B S k d"]) -> Int4Keys:
    """Returns keys in half a byte a number: round(key / scale), at most 7.

    7 · scale is the largest magnitude in a key, but for the rounding of scale to bfloat16.

    Raises:
      ValueError: a key has an odd count of numbers.
    """
    width = keys.shape[-1]
    if width % 2:
        raise ValueError(f"keys must have an even count of numbers to be kept two in a byte; got {width}")
    wide = keys.astype(jnp.float32)
    scale = (jnp.maximum(jnp.abs(wide).max(-1), jnp.float32(1e-12)) / 7).astype(jnp.bfloat16)
    # The scale may have been rounded down, and the largest number is then a little over 7.
    number = jnp.clip(jnp.round(wide / scale.astype(jnp.float32)[..., None]), -7, 7)
    low, high = jnp.split((number + 8.0).astype(jnp.uint8), 2, axis=-1)
    return Int4Keys(packed=low | (high << 4), scale=scale)


def importance(queries: Float[Array, "B Q n d"], keys: Any) -> Float[Array, "B k G Q S"]:
    """Returns the score of every slot or page for every query: q · k / √d, float32. No mask is in it.

    Args:
      queries: n = k · G of them, G for each key.
      keys: `[B, S, k, d]`, `Int8Keys` or `Int4Keys`.
    """
    values = keys.numbers if isinstance(keys, ROUNDED) else keys.astype(jnp.float32)
    batch, width, _, d = queries.shape
    by_key = queries.reshape(batch, width, values.shape[2], -1, d).astype(jnp.float32)
    found = jnp.einsum("BQKGD,BSKD->BKGQS", by_key, values) * jnp.float32(d**-0.5)
    if isinstance(keys, ROUNDED):
        found *= keys.scale.astype(jnp.float32).transpose(0, 2, 1)[:, :, None, None]
    return found
