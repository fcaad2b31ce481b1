"""Rotary position embeddings, with the stretchings of long-context models.

Source: Su et al. 2021 (RoPE); Peng et al. 2023 (YaRN); the `llama3` rule as released with Llama 3.1.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jax_smash.config import RopeConfig


def frequencies(rope: RopeConfig, head_width: int) -> np.ndarray:
    """Returns radians a position for each of the H/2 pairs, float32."""
    exponent = np.arange(0, head_width, 2, dtype=np.float32) / np.float32(head_width)
    plain = (1.0 / np.power(np.float32(rope.base), exponent)).astype(np.float32)
    if rope.scaling == "none":
        return plain
    stretched = plain / np.float32(rope.factor)
    if rope.scaling == "linear":
        return stretched
    if rope.scaling == "llama3":
        # Rotations over the original context decide: many keep their frequency, few are stretched.
        rotations = rope.original_positions * plain / (2 * np.pi)
        keep = np.clip((rotations - rope.low) / (rope.high - rope.low), 0, 1)
        return (stretched * (1 - keep) + plain * keep).astype(np.float32)
    return _yarn(rope, head_width, plain, stretched)


def _yarn(rope: RopeConfig, head_width: int, plain: np.ndarray, stretched: np.ndarray) -> np.ndarray:
    def pair_with(rotations: float) -> float:
        wavelength = rope.original_positions / (rotations * 2 * math.pi)
        return head_width * math.log(wavelength) / (2 * math.log(rope.base))

    first, last = pair_with(rope.high), pair_with(rope.low)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_width - 1)
    if first == last:
        last += 0.001
    ramp = np.clip((np.arange(head_width // 2, dtype=np.float32) - first) / (last - first), 0, 1)
    return (stretched * ramp + plain * (1 - ramp)).astype(np.float32)


def rotation(
    rope: RopeConfig, head_width: int, position: Int[Array, "B T"]
) -> tuple[Float[Array, "B T half"], Float[Array, "B T half"]]:
    """Returns cos and sin of every pair's angle at each position, float32."""
    angle = position.astype(jnp.float32)[..., None] * frequencies(rope, head_width)[None, None]
    return jnp.cos(angle) * rope.attention_factor, jnp.sin(angle) * rope.attention_factor


def rotate(
    x: Float[Array, "B T *heads H"], angles: tuple[Float[Array, "B T half"], Float[Array, "B T half"]]
) -> Float[Array, "B T *heads H"]:
    """Turns each pair (i, i + H/2) of every head by its angle."""
    heads = (1,) * (x.ndim - 3)
    cos, sin = (a.astype(x.dtype).reshape(*a.shape[:2], *heads, -1) for a in angles)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
