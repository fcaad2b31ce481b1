"""Whether a group ends with the token that was just read from a hidden vector."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from jax_smash.config import ModelConfig
from jax_smash.models.layers import weight
from jax_smash.models.projection import project


class StopHead(nnx.Module):
    """Three linear layers with SiLU between them, from a hidden vector to one number.

    Source: Liu and Zhang 2025, HAMburger, section 3.
    """

    def __init__(self, base: ModelConfig, *, rngs: nnx.Rngs, dtype: Any):
        d, zeros = base.d_model, jax.nn.initializers.zeros
        self.w_in = weight(rngs, (d, d), ("embed", "mlp"), dtype, contracted=(0,))
        self.w_middle = weight(rngs, (d, d), ("mlp", "embed"), dtype, contracted=(0,))
        self.w_out = weight(rngs, (d, 1), ("embed", None), dtype, contracted=(0,))
        self.b_in = weight(rngs, (d,), ("mlp",), dtype, zeros)
        self.b_middle = weight(rngs, (d,), ("embed",), dtype, zeros)
        self.b_out = weight(rngs, (1,), (None,), dtype, zeros)

    def __call__(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch"]:
        """Returns the logit, float32, of the probability that the group ends with the token read from each vector."""
        x = hidden.reshape(-1, 1, hidden.shape[-1]).astype(self.b_out[...].dtype)
        x = jax.nn.silu(project(x, self.w_in[...]) + self.b_in[...][None, None])
        x = jax.nn.silu(project(x, self.w_middle[...]) + self.b_middle[...][None, None])
        x = project(x, self.w_out[...]) + self.b_out[...][None, None]
        return x.astype(jnp.float32).reshape(hidden.shape[:-1])


def goes_on(stop: Float[Array, "*batch"], confidence: Float[Array, "*batch"]) -> Bool[Array, "*batch"]:
    """Marks the groups that take another token: those that end here with a probability of at most 1 − confidence.

    Args:
      stop: logits, from a `StopHead`.
      confidence: from 0 (always go on) to 1.
    """
    return jax.nn.sigmoid(-stop) >= confidence
