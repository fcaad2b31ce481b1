"""Grams: each token with those before it, and the encoders that make a vector of one."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.models.chimera_config import ChimeraConfig
from jax_smash.models.layers import Keys, weight
from jax_smash.models.medusa import ResidualBlock
from jax_smash.models.projection import project

NONE = -1
"""In a gram: what stands before the first token of a text."""


class GramMLP(nnx.Module):
    """W_out · SiLU(W_in · gram), over the vectors of the gram's tokens one behind the other."""

    def __init__(self, config: ChimeraConfig, *, rngs: Keys, dtype: Any):
        d = config.d_model
        self.w_in = weight(rngs, (config.gram * d, d), ("embed", "mlp"), dtype, contracted=(0,))
        self.w_out = weight(rngs, (d, d), ("mlp", "embed"), dtype, contracted=(0,))

    def __call__(self, x: Float[Array, "B T gD"]) -> Float[Array, "B T D"]:
        return project(jax.nn.silu(project(x, self.w_in[...])), self.w_out[...])


class GramResidual(nnx.Module):
    """W_out · (gram + SiLU(W · gram + b)); W and b are 0 at first."""

    def __init__(self, config: ChimeraConfig, *, rngs: Keys, dtype: Any):
        width = config.gram * config.d_model
        self.block = ResidualBlock(width, rngs=rngs, dtype=dtype)
        self.w_out = weight(rngs, (width, config.d_model), ("embed", None), dtype, contracted=(0,))

    def __call__(self, x: Float[Array, "B T gD"]) -> Float[Array, "B T D"]:
        return project(self.block(x), self.w_out[...])


def grams_of(before: Int[Array, "B g"], token: Int[Array, "B T"]) -> Int[Array, "B T g"]:
    """Returns the gram that ends with each token.

    Args:
      before: the tokens before the first, as many as a gram has; `NONE` where the text has not begun.
      token: in order.
    """
    gram, length = before.shape[1], token.shape[1]
    text = jnp.concatenate([before, token], axis=1)
    return jnp.stack([text[:, i + 1 : i + 1 + length] for i in range(gram)], axis=2)


def vectors_of(grams: Int[Array, "B T g"], target: Any, *, first_stands_in: bool) -> Float[Array, "B T gD"]:
    """Returns the target's vectors of each gram's tokens, one behind the other.

    Args:
      grams: tokens; `NONE` before the first of a text.
      target: bound, whose `embed` is used.
      first_stands_in: the text's first token stands where there is none; else 0 does.
    """
    known = grams >= 0
    first = jnp.take_along_axis(grams, jnp.argmax(known, axis=2, keepdims=True), axis=2)
    ids = jnp.maximum(jnp.where(known, grams, first), 0)
    vectors = target.embed(ids.reshape(len(ids), -1)).reshape(*ids.shape, -1)
    if not first_stands_in:
        vectors = jnp.where(known[..., None], vectors, jnp.zeros_like(vectors))
    return vectors.reshape(*ids.shape[:2], -1)
