"""EAGLE-1's drafter: one layer that guesses the target's next hidden state, which the target's own head reads."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jax_smash.config import ModelConfig, RopeConfig
from jax_smash.models.config_fields import check_head_size, config_of
from jax_smash.models.layers import MLP, Attention, Keys, OneKey, RMSNorm, weight
from jax_smash.models.pairs import FULL, PairLayer
from jax_smash.models.projection import project
from jax_smash.sampling.vocabulary import Likeliest, likeliest_tokens


@dataclasses.dataclass(frozen=True)
class Eagle1Config:
    """Sizes of an EAGLE-1 drafter, and the target that it fits.

    Attributes:
      vocab_size, d_model: V and D of the target. The drafter is as wide.
      num_heads, num_kv_heads, head_width, mlp_width: N, K, H and F of the drafter's layer.
      max_positions: positions that it has; it drafts nothing behind them. It may have been trained on shorter rows.
      norm_epsilon: of the layer's norm.
      rope: rotary embedding of the layer.
      join_bias: a bias is added where the vector and the feature are joined, as in the published drafters.
      qkv_bias: queries, keys and values have biases.
      head_size: tokens that it can say by the target's head; 0 for all.
    """

    vocab_size: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    mlp_width: int
    max_positions: int
    norm_epsilon: float = 1e-6
    rope: RopeConfig = RopeConfig()  # noqa: RUF009 - frozen
    join_bias: bool = True
    qkv_bias: bool = False
    head_size: int = 0

    def __post_init__(self) -> None:
        if self.max_positions < 1:
            raise ValueError(f"max_positions must be at least 1; got {self.max_positions}")
        check_head_size(self.head_size, self.vocab_size)
        _ = self.layer  # Checks the other sizes.

    @classmethod
    def for_target(cls, target: ModelConfig, **changes: Any) -> "Eagle1Config":
        """Returns a drafter with a layer of the target's own sizes, with some fields changed.

        Raises:
          ValueError: a size is out of range.
        """
        fields: dict[str, Any] = {
            "vocab_size": target.vocab_size,
            "d_model": target.d_model,
            "num_heads": target.num_heads,
            "num_kv_heads": target.num_kv_heads,
            "head_width": target.head_width,
            "mlp_width": target.mlp_width,
            "max_positions": target.max_positions,
            "norm_epsilon": target.norm_epsilon,
            "rope": target.rope_of(FULL if FULL in target.layer_kinds else "sliding"),
            "qkv_bias": target.qkv_bias,
        }
        return cls(**(fields | changes))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "Eagle1Config":
        """Returns the configuration that `to_fields` wrote.

        Raises:
          ValueError: a field is missing, unknown, of the wrong type or out of range.
        """
        return config_of(cls, fields)

    def to_fields(self) -> dict[str, Any]:
        """Returns the fields as JSON holds them."""
        return dataclasses.asdict(self)

    @property
    def taps(self) -> tuple[int, ...]:
        """Taps of the target that are read: none, for a feature is the hidden state behind the final norm."""
        return ()

    @property
    def layer(self) -> ModelConfig:
        """The drafter's layer as a model's."""
        return ModelConfig(
            family="eagle1",
            vocab_size=self.vocab_size,
            num_layers=1,
            d_model=self.d_model,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_width=self.head_width,
            mlp_width=self.mlp_width,
            max_positions=self.max_positions,
            layer_kinds=(FULL,),
            norm_epsilon=self.norm_epsilon,
            rope=self.rope,
            qkv_bias=self.qkv_bias,
        )


class Eagle1(PairLayer):
    """A layer that makes of feature i and token i + 1 what feature i + 1 will be. Holds weights only.

    Feature i is the target's hidden state of token i behind its final norm. The layer has no norm before its attention
    and none behind it, for what it makes stands in the place of a feature: the target's own head reads it, and the next
    entry goes on from it.

    Source: Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", section 4.1.
    """

    def __init__(self, config: Eagle1Config, *, rngs: Keys, dtype: Any = jnp.float32):
        layer, d = config.layer, config.d_model
        self.config = config
        # The vector's rows first, then the feature's.
        self.w_join = weight(rngs, (2 * d, d), ("embed", None), dtype, contracted=(0,))
        zeros = jax.nn.initializers.zeros
        self.b_join = weight(rngs, (d,), (None,), dtype, zeros) if config.join_bias else None
        self.attention = Attention(layer, FULL, rngs=rngs, dtype=dtype)
        self.mlp_norm = RMSNorm(d, layer, rngs=rngs, dtype=dtype)
        self.mlp = MLP(layer, rngs=rngs, dtype=dtype)

    def features(self, hidden: Float[Array, "B T _"], taps: tuple[Float[Array, "B T _"], ...]) -> Float[Array, "B T D"]:
        """Returns the target's hidden states behind its final norm."""
        return hidden.astype(self.dtype)

    def logits(self, hidden: Float[Array, "B T D"], target: Any) -> Float[Array, "B T V"]:
        """Returns those of the target's own head."""
        return target.unembed(hidden)

    def guesses(self, hidden: Float[Array, "B T D"], n: int, target: Any, *, total: bool = False) -> Likeliest:
        """Returns the n likeliest tokens behind each entry by the target's own head."""
        return likeliest_tokens(target, hidden, n, total=total)

    def entries(
        self, vectors: Float[Array, "B T D"], features: Float[Array, "B T D"]
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"]]:
        """Returns vector and feature joined, which the residual begins with and the attention reads as it is."""
        x = project(
            jnp.concatenate([vectors.astype(self.dtype), features.astype(self.dtype)], axis=-1), self.w_join[...]
        )
        if self.b_join is not None:
            x += self.b_join[...][None, None]
        return x, x

    def made_of(self, x: Float[Array, "B T D"]) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"]]:
        """Returns the layer's residual as both: what the head reads, and the feature that goes on."""
        return x, x


def abstract_eagle1(config: Eagle1Config, dtype: Any = jnp.float32) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the drafter's structure, and its parameters as shapes, dtypes and logical axes without any memory."""
    return nnx.split(nnx.eval_shape(lambda: Eagle1(config, rngs=OneKey(), dtype=dtype)))


def random_eagle1(config: Eagle1Config, seed: int = 0, dtype: Any = jnp.float32) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the drafter's structure and randomly initialised parameters."""
    return nnx.split(Eagle1(config, rngs=nnx.Rngs(seed), dtype=dtype))
