"""TokenButler's later form for grouped-query attention: the base's own keys, projected to a few numbers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block
from jax_smash.models.attended import Attended
from jax_smash.models.layers import Keys, weight
from jax_smash.models.predictors.config import PredictorConfig
from jax_smash.models.predictors.importance import Importance, RoundedKeys, int8_keys
from jax_smash.models.predictors.layer_norm import LayerNorm
from jax_smash.models.projection import project

XAVIER = jax.nn.initializers.glorot_uniform()
XAVIER_BY_HEAD = jax.nn.initializers.glorot_uniform(batch_axis=(0, 1))


@dataclasses.dataclass(frozen=True)
class GroupedConfig(PredictorConfig):
    """Sizes of the predictor with a score for each KV head.

    Attributes:
      every: layers that one producer makes queries for, from the residual that enters the first of them.
      hidden: I, the width inside a producer.
      width: d, of a query and of a projected key.
      int8: projected keys are kept in a byte a number.
    """

    every: int = 4
    hidden: int = 512
    width: int = 16
    int8: bool = False

    kind = "grouped"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "every", "hidden", "width")

    @property
    def starts(self) -> range:
        """The first layer of each producer."""
        return range(0, self.num_layers, self.every)


class Producer(nnx.Module):
    """Queries of a few layers: silu(LayerNorm(x) A) B."""

    def __init__(self, config: GroupedConfig, layers: int, *, rngs: Keys, dtype: Any):
        outputs = layers * config.num_heads * config.width
        self.norm = LayerNorm(config.d_model, rngs=rngs, dtype=dtype)
        self.w_in = weight(rngs, (config.d_model, config.hidden), (None, None), dtype, XAVIER)
        self.w_out = weight(rngs, (config.hidden, outputs), (None, None), dtype, XAVIER)
        self.shape = (layers, config.num_heads, config.width)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T l N d"]:
        made = project(jax.nn.silu(project(self.norm(x), self.w_in[...])), self.w_out[...])
        return made.reshape(*x.shape[:2], *self.shape)


class Grouped(nnx.Module):
    """Queries from small producers every few layers, keys by one projection of the base's rotated keys. Weights only.

    A key serves the query heads of a KV head, which are to share one set of slots: its keys and values are read once.

    Source: released code of TokenButler's later generations; no paper describes them.
    """

    def __init__(self, config: GroupedConfig, *, rngs: Keys, dtype: Any = jnp.float32):
        counts = [min(config.every, config.num_layers - start) for start in config.starts]
        self.config = config
        self.producers = nnx.List([Producer(config, count, rngs=rngs, dtype=dtype) for count in counts])
        shape = (config.num_layers, config.num_kv_heads, config.head_width, config.width)
        self.w_keys = weight(rngs, shape, (None,) * 4, dtype, XAVIER_BY_HEAD)

    @property
    def dtype(self) -> Any:
        """What the predictor computes in."""
        return self.w_keys[...].dtype

    def queries_at(self, layer: int, x: Float[Array, "B T D"]) -> Float[Array, "B T l N d"]:
        """Returns the queries for a layer and those that follow it, up to the next producer's.

        Args:
          layer: one of `config.starts`.
          x: the residual that enters it.

        Raises:
          ValueError: no producer stands there.
        """
        if layer not in self.config.starts:
            raise ValueError(f"layer must be one of {[*self.config.starts]}, where producers are; got {layer}")
        return self.producers[layer // self.config.every](x)

    def keys_of(self, layer: int, keys: Float[Array, "B T K H"]) -> Float[Array, "B T K d"] | RoundedKeys:
        """Returns what is kept of new entries of a layer, from the base's keys behind the rotary embedding."""
        made = jnp.einsum("BTKH,KHD->BTKD", keys.astype(self.dtype), self.w_keys[...][layer])
        return int8_keys(made) if self.config.int8 else made

    def read(
        self, taps: Sequence[Float[Array, "B T D"]], heads: Attended, position: Int[Array, "B T"], block: Block
    ) -> Importance:
        """Returns queries and keys of whole rows, as training needs them; keys are not rounded.

        Args:
          taps: of the base's forward.
          heads: of its layers.
          position, block: not read by this form.
        """
        made = [self.queries_at(start, taps[start]) for start in self.config.starts]
        queries = jnp.concatenate(made, axis=2).transpose(2, 0, 1, 3, 4)
        keys = jnp.einsum("LBTKH,LKHD->LBTKD", heads.keys.astype(self.dtype), self.w_keys[...])
        return Importance(queries=queries, keys=keys)
