"""Layer normalisation, which no supported base has and predictors do."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jax_smash.models.layers import Keys, weight

EPSILON = 1e-5


class LayerNorm(nnx.Module):
    """Subtracts the mean over the last axis, divides by the deviation, scales and shifts; in float32."""

    def __init__(self, width: int, *, rngs: Keys, dtype: Any):
        self.scale = weight(rngs, (width,), (None,), dtype, jax.nn.initializers.ones)
        self.shift = weight(rngs, (width,), (None,), dtype, jax.nn.initializers.zeros)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        wide = x.astype(jnp.float32)
        wide -= wide.mean(-1, keepdims=True)
        wide *= jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + EPSILON)
        scale, shift = (w[...].astype(jnp.float32)[None, None] for w in (self.scale, self.shift))
        return (wide * scale + shift).astype(self.scale[...].dtype)
