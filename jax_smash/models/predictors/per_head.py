"""TokenButler's predictor as the paper has it: scores of every query head in every layer, from one residual."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.attention import attend
from jax_smash.cache import Block, BlockKV, KVCache, init_cache
from jax_smash.config import AttentionKind, ModelConfig, RopeConfig
from jax_smash.models.attended import Attended
from jax_smash.models.layers import Keys, weight
from jax_smash.models.predictors.config import PredictorConfig
from jax_smash.models.predictors.importance import Importance
from jax_smash.models.predictors.layer_norm import LayerNorm
from jax_smash.models.projection import project
from jax_smash.models.rope import rotate, rotation
from jax_smash.pytree import pytree

FULL: AttentionKind = "full"
XAVIER = jax.nn.initializers.glorot_uniform()


@dataclasses.dataclass(frozen=True)
class PerHeadConfig(PredictorConfig):
    """Sizes of the predictor with a score for each query head.

    Attributes:
      attach: the tap that it reads: 0 is the embedding, 1 the first layer's output. Layers before it are dense,
        unless the predictor looks ahead.
      reduced: r, the width of its small attention.
      reduced_heads: heads of that.
      hidden: I, the width inside the maps to queries and keys.
      width: d, of a head's query and key.
    """

    attach: int = 1
    reduced: int = 64
    reduced_heads: int = 8
    hidden: int = 512
    width: int = 16

    kind = "per_head"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "reduced", "reduced_heads", "hidden")
        if not 0 <= self.attach < self.num_layers:
            raise ValueError(f"attach must be from 0 to the base's last layer {self.num_layers - 1}; got {self.attach}")
        if self.reduced % self.reduced_heads:
            raise ValueError(f"reduced must be a multiple of {self.reduced_heads} heads; got {self.reduced}")
        self._even("reduced / reduced_heads", self.reduced // self.reduced_heads)
        self._even("width", self.width)

    @classmethod
    def usual(cls, base: ModelConfig) -> dict[str, Any]:
        """Returns the paper's: an eighth of the base's width, and as many heads as the base."""
        return super().usual(base) | {"reduced": base.d_model // 8, "reduced_heads": base.num_heads}

    @property
    def first_layer(self) -> int:
        """The first layer that is predicted: those before it are dense."""
        return 0 if self.look_ahead else self.attach


@pytree
class PerHeadRead:
    """What the predictor makes of new entries.

    Attributes:
      queries: used in this step alone.
      keys: what is kept of an entry beside the cache, rotated for its position once and for all.
      block_kv: for the `commit` of the small attention's cache.
    """

    queries: Float[Array, "B T L N d"]
    keys: Float[Array, "B T L N d"]
    block_kv: BlockKV


class PerHead(nnx.Module):
    """Reduces a residual, attends once at that width, and makes a short query and key for each head of each layer.

    Formula: x̂ = LayerNorm(x); z = x̂ W; h = x̂ + MLP(LayerNorm(attention(z))); a head's query and key are
    RoPE(silu(h A) B), with maps of their own; the score is q · k / √d. Holds weights only.

    Source: "TokenButler: Token Importance Is Predictable", section 3, and its released code.
    Differs: a step's scores are those of the masked forward. Released code rotates kept keys again at every step, and
    the small attention of a step sees the first entry alone; its quality was measured on masked forwards. The paper
    does not say where its norm over the base's width stands; here it is the first operation.
    """

    def __init__(self, config: PerHeadConfig, *, rngs: Keys, dtype: Any = jnp.float32):
        d, r, heads = config.d_model, config.reduced, config.num_layers * config.num_heads * config.width

        def matrix(rows: int, columns: int) -> nnx.Param:
            return weight(rngs, (rows, columns), (None, None), dtype, XAVIER)

        def zeros(width: int) -> nnx.Param:
            return weight(rngs, (width,), (None,), dtype, jax.nn.initializers.zeros)

        self.config = config
        self.input_norm, self.reduced_norm = (LayerNorm(n, rngs=rngs, dtype=dtype) for n in (d, r))
        self.w_reduce = matrix(d, r)
        self.w_query, self.w_key, self.w_value = matrix(r, r), matrix(r, r), matrix(r, r)
        self.w_middle, self.b_middle = matrix(r, 2 * r), zeros(2 * r)
        self.w_widen, self.b_widen = matrix(2 * r, d), zeros(d)
        self.w_queries_in, self.w_queries_out = matrix(d, config.hidden), matrix(config.hidden, heads)
        self.w_keys_in, self.w_keys_out = matrix(d, config.hidden), matrix(config.hidden, heads)

    @property
    def dtype(self) -> Any:
        """What the predictor computes in, and its cache holds."""
        return self.w_reduce[...].dtype

    def init_cache(self, batch: int, slots: int, block: int) -> KVCache:
        """Makes an empty cache of the small attention: `slots` slots a row, for commits of at most `block` entries."""
        config = self.config
        return init_cache(
            kinds=(FULL,),
            layer_kinds=(FULL,),
            window=0,
            batch=batch,
            slots=slots,
            block=block,
            num_kv_heads=config.reduced_heads,
            head_width=config.reduced // config.reduced_heads,
            dtype=self.dtype,
            follows_length=False,
        )

    def read_entries(
        self, x: Float[Array, "B T D"], position: Int[Array, "B T"], cache: KVCache | None, block: Block
    ) -> PerHeadRead:
        """Reads new entries. The cache is read, never written.

        Args:
          x: the base's tap `attach`.
          position: of each entry.
          cache: what is committed; None for a block without a past.
          block: which entries see which.
        """
        config = self.config
        x = self.input_norm(x)
        out, key_value = self._attention(project(x, self.w_reduce[...]), position, cache, block)
        middle = project(self.reduced_norm(out), self.w_middle[...]) + self.b_middle[...][None, None]
        middle = jax.nn.gelu(middle, approximate=False)
        x += project(middle, self.w_widen[...]) + self.b_widen[...][None, None]
        angles = rotation(config.rope, config.width, position)

        def heads(inner: nnx.Param, outer: nnx.Param) -> Float[Array, "B T L N d"]:
            made = project(jax.nn.silu(project(x, inner[...])), outer[...])
            return rotate(made.reshape(*x.shape[:2], config.num_layers, config.num_heads, config.width), angles)

        queries, keys = heads(self.w_queries_in, self.w_queries_out), heads(self.w_keys_in, self.w_keys_out)
        return PerHeadRead(queries=queries, keys=keys, block_kv=(key_value,))

    def _attention(
        self, z: Float[Array, "B T r"], position: Int[Array, "B T"], cache: KVCache | None, block: Block
    ) -> tuple[Float[Array, "B T r"], tuple[Array, Array]]:
        config, heads = self.config, self.config.reduced_heads
        width = config.reduced // heads
        query, key, value = (
            project(z, w[...]).reshape(*z.shape[:2], heads, width) for w in (self.w_query, self.w_key, self.w_value)
        )
        angles = rotation(RopeConfig(base=config.rope_base), width, position)
        query, key = rotate(query, angles), rotate(key, angles)
        past = None if cache is None else cache.layer(0)
        out = attend(query, key, value, position, past, block.layer(0), scale=width**-0.5)
        return out.reshape(z.shape), (key, value)

    def read(
        self, taps: Sequence[Float[Array, "B T D"]], heads: Attended, position: Int[Array, "B T"], block: Block
    ) -> Importance:
        """Returns queries and keys of whole rows, as training needs them.

        Args:
          taps: of the base's forward.
          heads: not read by this form.
          position: of each entry.
          block: which entries see which, without a past.
        """
        found = self.read_entries(taps[self.config.attach], position, None, block)
        queries, keys = (x.transpose(2, 0, 1, 3, 4) for x in (found.queries, found.keys))
        return Importance(queries=queries, keys=keys)
