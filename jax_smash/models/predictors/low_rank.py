"""Attention in a few numbers a head: the base's own queries and keys, both projected."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block
from jax_smash.config import ModelConfig
from jax_smash.models.attended import Attended
from jax_smash.models.layers import Keys, weight
from jax_smash.models.predictors.config import PredictorConfig
from jax_smash.models.predictors.importance import Importance


@dataclasses.dataclass(frozen=True)
class LowRankConfig(PredictorConfig):
    """Sizes of the predictor whose queries are the base's own.

    Attributes:
      width: d, of a projected query and of a projected key.
    """

    width: int = 16

    kind = "low_rank"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "width")
        if self.width > self.head_width:
            raise ValueError(f"width must be at most the base's head_width, {self.head_width}; got {self.width}")
        if self.look_ahead:
            raise ValueError(f"look_ahead must be 0 where the base's own queries are read; got {self.look_ahead}")

    @classmethod
    def usual(cls, base: ModelConfig) -> dict[str, Any]:
        """Returns the fields that depend on the base, beside its sizes."""
        return super().usual(base) | {"width": min(cls.width, base.head_width)}


class LowRank(nnx.Module):
    """Queries and keys by one projection each of the base's own, behind the rotary embedding. Weights only.

    score(s) = (q A) · (k B) / √d for each query head; a B for each KV head, an A for each of its query heads

    Source: Singhania et al. 2024, "Loki: Low-rank Keys for Efficient Sparse Attention".
    Differs: there both projections are the keys' principal components; here they are learned from the base's attention.
    """

    def __init__(self, config: LowRankConfig, *, rngs: Keys, dtype: Any = jnp.float32):
        self.config = config
        group = config.num_heads // config.num_kv_heads
        shape = (config.num_layers, config.num_kv_heads, config.head_width, config.width)
        by_query = (*shape[:2], group, *shape[2:])
        self.w_keys = weight(rngs, shape, (None,) * 4, dtype, _planes)
        # Both begin alike, so that products approximate those of the whole heads from the start.
        alike = jnp.broadcast_to(self.w_keys[...][:, :, None], by_query)
        self.w_queries = weight(rngs, by_query, (None,) * 5, dtype, lambda *_: alike)

    @property
    def dtype(self) -> Any:
        """What the predictor computes in."""
        return self.w_keys[...].dtype

    def keys_of(self, layer: int, keys: Float[Array, "B T K H"]) -> Float[Array, "B T K d"]:
        """Returns what is kept of new entries of a layer, from the base's keys behind the rotary embedding."""
        return jnp.einsum("BTKH,KHD->BTKD", keys.astype(self.dtype), self.w_keys[...][layer])

    def read(
        self, taps: Sequence[Float[Array, "B T D"]], heads: Attended, position: Int[Array, "B T"], block: Block
    ) -> Importance:
        """Returns queries and keys of whole rows, as training needs them.

        Args:
          heads: of the base's layers.
          taps, position, block: not read by this form.
        """
        by_group = heads.queries.reshape(*heads.queries.shape[:3], self.config.num_kv_heads, -1, self.config.head_width)
        queries = jnp.einsum("LBTKGH,LKGHD->LBTKGD", by_group.astype(self.dtype), self.w_queries[...])
        keys = jnp.einsum("LBTKH,LKHD->LBTKD", heads.keys.astype(self.dtype), self.w_keys[...])
        return Importance(queries=queries.reshape(*heads.queries.shape[:4], -1), keys=keys)


def _planes(key: Array, shape: tuple[int, ...], dtype: Any) -> Float[Array, "L K H d"]:
    """Draws orthogonal columns whose projections' products, over √d, have the mean that those of heads have over √H."""
    *stack, whole, kept = shape
    drawn = jax.random.orthogonal(key, whole, tuple(stack), m=kept)
    return (drawn * (whole / kept) ** 0.25).astype(dtype)
