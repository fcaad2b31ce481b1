"""Grams: each token with those before it, and the encoders that make a vector of one, or of the text up to a token."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block, BlockKV, KVCache
from jax_smash.models.chimera_config import FULL, TEXT_LAYER, ChimeraConfig
from jax_smash.models.layers import Keys, Layer, weight
from jax_smash.models.medusa import ResidualBlock
from jax_smash.models.projection import project
from jax_smash.models.rope import longest, rotation

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


class TextLayer(nnx.Module):
    """A transformer layer over the target's vectors of all tokens: a token's code tells of all of the text up to it.

    Source: Zeng et al. 2024, "Chimera", section 5.4.1, which compares it with grams.
    """

    def __init__(self, config: ChimeraConfig, *, rngs: Keys, dtype: Any):
        self.config = config.encoder_layer
        self.layer = Layer(self.config, FULL, rngs=rngs, dtype=dtype)

    def __call__(
        self, vectors: Float[Array, "B T D"], position: Int[Array, "B T"], cache: KVCache | None, block: Block
    ) -> tuple[Float[Array, "B T D"], BlockKV]:
        """Returns the codes of new tokens, and their keys and values for the cache's `commit`.

        Args:
          vectors: of the target.
          position: of each token.
          cache: what is committed of the tokens before; None for a block without a past.
          block: which tokens see which.
        """
        reach = longest(position, block.valid) if cache is None else cache.reach
        angles = rotation(self.config.rope, self.config.head_width, position, reach)
        past = None if cache is None else cache.layer(0)
        codes, key_value = self.layer(vectors, position, angles, past, block.layer(0))
        return codes, (key_value,)


ENCODERS: dict[str, Callable[..., nnx.Module]] = {"mlp": GramMLP, "residual": GramResidual, TEXT_LAYER: TextLayer}
"""Encoders by the name of their form."""


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
