"""EAGLE-3's drafter: one layer that reads each token beside what the target made of the token before it."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from qwix import QArray

from jax_smash.cache import Block, BlockKV, KVCache, init_cache
from jax_smash.models.eagle_config import FULL, EagleConfig
from jax_smash.models.head import likeliest_rows
from jax_smash.models.layers import MLP, Attention, Keys, OneKey, RMSNorm, rows_axis, weight
from jax_smash.models.projection import project, row_products
from jax_smash.models.rope import longest, rotation
from jax_smash.pytree import pytree
from jax_smash.quantise import scores
from jax_smash.sharding import constrain


class TokenIds(nnx.Variable):
    """Token ids that belong to a module's weights and are not trained."""


@pytree
class EagleForward:
    """The result of one forward of the drafter.

    Attributes:
      hidden: what the head reads.
      feature: what tokens behind the entries are drafted from, in place of the target's feature.
      block_kv: keys and values of all new entries, for the cache's `commit`.
    """

    hidden: Float[Array, "B Q D"]
    feature: Float[Array, "B Q D"]
    block_kv: BlockKV


class Eagle(nnx.Module):
    """One layer over pairs: the feature of a token, and the vector of the token that follows it.

    The entry of feature i and token i + 1 has position i, and tells of token i + 2. The vectors are the target's own.
    Holds weights only.

    Source: Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time
    Test", section 3.
    """

    def __init__(self, config: EagleConfig, *, rngs: Keys, dtype: Any = jnp.float32):
        layer, d = config.layer, config.d_model

        def norm() -> RMSNorm:
            return RMSNorm(d, layer, rngs=rngs, dtype=dtype)

        self.config = config
        self.tap_norms = nnx.List([norm() for _ in config.taps]) if config.tap_norms else None
        self.w_join = weight(rngs, (len(config.taps) * d, d), ("embed", None), dtype, contracted=(0,))
        self.vector_norm, self.feature_norm, self.mlp_norm, self.final_norm = norm(), norm(), norm(), norm()
        self.attention = Attention(layer, FULL, rngs=rngs, dtype=dtype, input_width=2 * d)
        self.mlp = MLP(layer, rngs=rngs, dtype=dtype)
        self.head = weight(rngs, (config.head_size, d), ("vocab", "embed"), dtype, contracted=(1,))
        # The token of each row of the head, in rising order.
        ids = jnp.arange(config.head_size, dtype=jnp.int32)
        self.tokens = TokenIds(ids) if config.head_size < config.vocab_size else None

    @property
    def dtype(self) -> Any:
        """What the drafter computes in, and its cache holds."""
        return self.final_norm.scale[...].dtype

    def join(self, taps: Sequence[Float[Array, "B T D"]]) -> Float[Array, "B T D"]:
        """Returns the features of entries that the target has read.

        Args:
          taps: of the target's forward, those that the configuration names.
        """
        read = [tap.astype(self.dtype) for tap in taps]
        if self.tap_norms is not None:
            read = [norm(tap) for norm, tap in zip(self.tap_norms, read, strict=True)]
        return project(jnp.concatenate(read, axis=-1), self.w_join[...])

    def forward(
        self,
        vectors: Float[Array, "B T D"],
        features: Float[Array, "B T D"],
        position: Int[Array, "B T"],
        cache: KVCache | None,
        block: Block,
        num_queries: int | None = None,
    ) -> EagleForward:
        """Reads new entries. The cache is read, never written.

        Args:
          vectors: of tokens, from the target's `embed`.
          features: of the tokens before them: from `join`, or of an earlier forward.
          position: of the features.
          cache: what is committed; None for a block without a past.
          block: which entries see which.
          num_queries: returns what was made of the last so many entries alone; by default of all.
        """
        config, asked = self.config, num_queries or vectors.shape[1]
        reach = longest(position, block.valid) if cache is None else cache.reach
        angles = rotation(config.rope, config.head_width, position, reach)
        start, read = self.entries(vectors, features)
        past = None if cache is None else cache.layer(0)
        out, key_value = self.attention(read, position, angles, past, block.layer(0), asked)
        rows = rows_axis(cache)
        x = start[:, -asked:] + constrain(out, rows, None, "embed")
        x = x + constrain(self.mlp(self.mlp_norm(x)), rows, None, "embed")
        hidden, feature = self.made_of(x)
        return EagleForward(hidden=hidden, feature=feature, block_kv=(key_value,))

    def entries(
        self, vectors: Float[Array, "B T D"], features: Float[Array, "B T D"]
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T both"]]:
        """Returns what the layer's residual begins with, and what its attention reads: vector and feature, normed."""
        residual = features.astype(self.dtype)
        normed = self.feature_norm(residual)
        read = jnp.concatenate([self.vector_norm(vectors.astype(self.dtype)), normed], axis=-1)
        return normed if self.config.residual_normed else residual, read

    def made_of(self, x: Float[Array, "B T D"]) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"]]:
        """Returns what the head reads of the layer's residual, and the feature that goes on."""
        hidden = self.final_norm(x)
        return hidden, hidden if self.config.feeds_normed else x

    def unembed(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Returns float32 logits of the target's tokens; minus infinity for what the head cannot say."""
        logits = constrain(_logits(hidden, self.head[...]), ..., "vocab")
        if self.tokens is None:
            return logits
        nothing = jnp.full((*hidden.shape[:-1], self.config.vocab_size), -jnp.inf, jnp.float32)
        return nothing.at[..., self.tokens[...]].set(logits)

    def likeliest(self, hidden: Float[Array, "B T D"], n: int) -> tuple[Float[Array, "B T n"], Int[Array, "B T n"]]:
        """Returns the logits and ids of the n likeliest tokens behind each entry, at most as many as the head has."""
        found = likeliest_rows(hidden, self.head[...], _logits, n)
        return found.values, found.tokens if self.tokens is None else self.tokens[...][found.tokens]

    def init_cache(self, batch: int, slots: int, block: int) -> KVCache:
        """Makes an empty cache of `slots` slots a row, for commits of at most `block` entries."""
        return init_cache(
            kinds=(FULL,),
            layer_kinds=(FULL,),
            window=0,
            batch=batch,
            slots=slots,
            block=block,
            num_kv_heads=self.config.num_kv_heads,
            head_width=self.config.head_width,
            dtype=self.dtype,
            follows_length=self.config.rope.follows_length,
        )


def _logits(hidden: Float[Array, "*batch D"], head: Any) -> Float[Array, "*batch X"]:
    """Returns the logits of some rows of the head, or of all."""
    return scores(hidden, head) if isinstance(head, QArray) else row_products(hidden, head)


def abstract_eagle(config: EagleConfig, dtype: Any = jnp.float32) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the drafter's structure, and its parameters as shapes, dtypes and logical axes without any memory."""
    return nnx.split(nnx.eval_shape(lambda: Eagle(config, rngs=OneKey(), dtype=dtype)))


def random_eagle(
    config: EagleConfig, seed: int = 0, dtype: Any = jnp.float32, *, tokens: Sequence[int] | None = None
) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the drafter's structure and randomly initialised parameters.

    Args:
      config: of the drafter.
      seed: of the weights.
      dtype: of the weights.
      tokens: those that the drafter can say, as `check_tokens` has them; None takes the first of the vocabulary.

    Raises:
      ValueError: the tokens are not those of a head of this size.
    """
    made = Eagle(config, rngs=nnx.Rngs(seed), dtype=dtype)
    if tokens is not None:
        ids = np.asarray(tokens)
        check_tokens(ids, config)
        if made.tokens is not None:
            made.tokens.set_value(jnp.asarray(ids, jnp.int32))
    return nnx.split(made)


def check_tokens(tokens: np.ndarray, config: EagleConfig) -> None:
    """Checks the tokens that a drafter can say.

    Raises:
      ValueError: they are not as many different tokens of the vocabulary as its head has rows, in rising order.
    """
    if tokens.shape != (config.head_size,) or not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(f"tokens must be {config.head_size} ids; got {tokens.dtype} {list(tokens.shape)}")
    if (np.diff(tokens) <= 0).any() or tokens[0] < 0 or tokens[-1] >= config.vocab_size:
        raise ValueError(f"tokens must be ids from 0 to {config.vocab_size - 1} in rising order, each once")
