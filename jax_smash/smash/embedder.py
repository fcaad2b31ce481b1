"""The vectors of a group's tokens become the one input vector of a slot."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jax_smash.config import ModelConfig
from jax_smash.models.layers import weight
from jax_smash.models.projection import project
from jax_smash.smash.config import SmashConfig

MASKED = -1e30
"""Score of a place behind a group's last token."""


class MeanPooling(nnx.Module):
    """The mean of a group's vectors: what the embedder is compared with. Holds no weights."""

    def places(self) -> None:
        """A mean has no places."""
        return

    def __call__(
        self, vectors: Float[Array, "*batch J D"], count: Int[Array, "*batch"], places: None = None
    ) -> Float[Array, "*batch D"]:
        """Returns each group's mean. See `CompositionalEmbedder.__call__`."""
        mean, _ = group_mean(vectors, count)
        return alone_or(vectors, count, mean)


class CompositionalEmbedder(nnx.Module):
    """One layer of cross-attention: the mean of a group's vectors asks, each vector and its place in the group answer.

    Equivalent formula: mean + w_o · attention(w_q · mean, w_kv · [vector, place]) + b_o; every projection has a bias.

    Source: Liu and Zhang 2025, HAMburger, section 3 ("compositional embedder").
    """

    def __init__(self, base: ModelConfig, config: SmashConfig, *, rngs: nnx.Rngs, dtype: Any):
        d, n = base.d_model, config.embedder_heads
        h, places = d // n, max(d // 2, 1)
        axes = ("embed", "kv_heads", None)
        self.w_q = weight(rngs, (d, n, h), axes, dtype, contracted=(0,))
        # Keys and values read a vector and its place side by side: the product is the sum of two.
        self.w_kv = weight(rngs, (d, 2, n, h), ("embed", None, "kv_heads", None), dtype, contracted=(0,))
        self.w_kv_place = weight(rngs, (places, 2, n, h), (None, None, "kv_heads", None), dtype)
        self.w_o = weight(rngs, (n, h, d), ("kv_heads", None, "embed"), dtype, contracted=(0, 1))
        xavier, zeros = jax.nn.initializers.glorot_normal(), jax.nn.initializers.zeros
        self.place = weight(rngs, (config.micro_steps, places), (None, None), dtype, xavier)
        self.b_q = weight(rngs, (n, h), ("kv_heads", None), dtype, zeros)
        self.b_kv = weight(rngs, (2, n, h), (None, "kv_heads", None), dtype, zeros)
        self.b_o = weight(rngs, (d,), ("embed",), dtype, zeros)

    def places(self) -> Float[Array, "J C N H"]:
        """Returns what the place in its group adds to a vector's key and value."""
        return jnp.einsum("JP,PCNH->JCNH", self.place[...], self.w_kv_place[...]) + self.b_kv[...][None]

    def __call__(
        self,
        vectors: Float[Array, "*batch J D"],
        count: Int[Array, "*batch"],
        places: Float[Array, "most C N H"] | None = None,
    ) -> Float[Array, "*batch D"]:
        """Returns the input vector of each group's slot.

        A group of one token is that token's vector, unchanged.

        Args:
          vectors: of a group's tokens, from `CausalLM.embed`; anything behind the first `count`. There may be fewer
            places than the modules' micro-steps, not more.
          count: tokens of each group, at least 1; a group of 0 (padding) gives zeros.
          places: from `places`, for a caller that has made them.
        """
        places = self.places() if places is None else places
        dtype = self.b_o[...].dtype
        groups = vectors.reshape(-1, *vectors.shape[-2:]).astype(dtype)
        flat = count.reshape(-1)
        mean, inside = group_mean(groups, flat)
        groups = jnp.where(inside[:, :, None], groups, jnp.zeros((), dtype))
        query = project(mean[:, None], self.w_q[...])[:, 0] + self.b_q[...][None]
        key_value = project(groups, self.w_kv[...]) + places[None, : groups.shape[1]]
        key, value = key_value[:, :, 0], key_value[:, :, 1]
        scores = jnp.einsum("RNH,RJNH->RNJ", query, key, preferred_element_type=jnp.float32)
        scores = jnp.where(inside[:, None], scores * query.shape[-1] ** -0.5, MASKED)
        mix = jnp.einsum("RNJ,RJNH->RNH", jax.nn.softmax(scores, axis=-1).astype(dtype), value)
        heads = query.shape[1] * query.shape[2]
        w_o = self.w_o[...].reshape(heads, mean.shape[1])
        fused = mean + project(mix.reshape(-1, 1, heads), w_o)[:, 0] + self.b_o[...][None]
        return alone_or(vectors, count, fused.astype(vectors.dtype).reshape(*count.shape, -1))


def group_mean(
    vectors: Float[Array, "*batch J D"], count: Int[Array, "*batch"]
) -> tuple[Float[Array, "*batch D"], Bool[Array, "*batch J"]]:
    """Returns the mean of each group's first `count` vectors, 0 where there are none, and marks their places."""
    place = jnp.arange(vectors.shape[-2], dtype=jnp.int32).reshape((1,) * count.ndim + (-1,))
    inside = place < count[..., None]
    total = jnp.where(inside[..., None], vectors, jnp.zeros((), vectors.dtype)).astype(jnp.float32).sum(axis=-2)
    return (total / jnp.maximum(count, 1)[..., None].astype(jnp.float32)).astype(vectors.dtype), inside


def alone_or(
    vectors: Float[Array, "*batch J D"], count: Int[Array, "*batch"], fused: Float[Array, "*batch D"]
) -> Float[Array, "*batch D"]:
    """Returns the first vector of groups that have no other, zeros for those that have none, and else the fused one."""
    alone = jnp.where(count[..., None] == 1, vectors[..., 0, :], fused)
    return jnp.where(count[..., None] == 0, jnp.zeros((), vectors.dtype), alone)


def alone(vectors: Float[Array, "*batch J D"], count: Int[Array, "*batch"]) -> Float[Array, "*batch D"]:
    """Returns the input vectors of groups of one token or none."""
    return alone_or(vectors, count, jnp.zeros_like(vectors[..., 0, :]))


def make_embedder(
    base: ModelConfig, config: SmashConfig, *, rngs: nnx.Rngs, dtype: Any
) -> CompositionalEmbedder | MeanPooling:
    """Makes the embedder that the configuration names."""
    if config.embedder == "mean":
        return MeanPooling()
    return CompositionalEmbedder(base, config, rngs=rngs, dtype=dtype)
