"""EAGLE-3's drafter: one layer that reads each token beside what the target made of the token before it."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from qwix import QArray

from jax_smash.models.eagle_config import FULL, EagleConfig
from jax_smash.models.head import likeliest_rows
from jax_smash.models.layers import MLP, Attention, Keys, OneKey, RMSNorm, weight
from jax_smash.models.pairs import PairLayer
from jax_smash.models.projection import project, row_products
from jax_smash.models.short_head import TokenIds, among_all, check_tokens
from jax_smash.pytree import replace
from jax_smash.quantise import scores
from jax_smash.sampling.vocabulary import Likeliest, likeliest_tokens
from jax_smash.sharding import constrain


class Eagle(PairLayer):
    """EAGLE-3's layer, and its head. A feature is made of several of the target's taps. Holds weights only.

    Source: Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time
    Test", section 3.
    Differs: where `own_rows` is off the head has the target's rows, which training leaves as they are, and the paper's
    learns its own. With a `head_size` below V it says some tokens alone, as published drafters do.
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
        table, axes = (config.head_size, d), ("vocab", "embed")
        self.head = weight(rngs, table, axes, dtype, contracted=(1,)) if config.own_rows else None
        # The token of each row of the head, in rising order.
        ids = jnp.arange(config.head_size, dtype=jnp.int32)
        self.tokens = TokenIds(ids) if config.head_size < config.vocab_size else None

    def features(self, hidden: Float[Array, "B T _"], taps: tuple[Float[Array, "B T _"], ...]) -> Float[Array, "B T D"]:
        """Returns the features of entries that the target has read, of all of whose taps some are needed."""
        return self.join([taps[i] for i in self.config.taps], rows="rows")

    def logits(self, hidden: Float[Array, "B T D"], target: Any) -> Float[Array, "B T V"]:
        """Returns those of the drafter's own head, as `unembed` does, or of the target's."""
        return target.unembed(hidden) if self.head is None else self.unembed(hidden)

    def guesses(self, hidden: Float[Array, "B T D"], n: int, target: Any, *, total: bool = False) -> Likeliest:
        """Returns the n likeliest tokens behind each entry by the drafter's own head, or the target's."""
        if self.head is None:
            return likeliest_tokens(target, hidden, n, total=total)
        found = likeliest_rows(hidden, self.head[...], _logits, n, total=total)
        return found if self.tokens is None else replace(found, tokens=self.tokens[...][found.tokens])

    def join(self, taps: Sequence[Float[Array, "B T D"]], *, rows: str = "batch") -> Float[Array, "B T D"]:
        """Returns the features of entries that the target has read.

        Args:
          taps: of the target's forward, those that the configuration names.
          rows: logical axis of their rows: `batch` in training, `rows` in decoding; see `layers.rows_axis`.
        """
        read = [tap.astype(self.dtype) for tap in taps]
        if self.tap_norms is not None:
            read = [norm(tap) for norm, tap in zip(self.tap_norms, read, strict=True)]
        return project(constrain(jnp.concatenate(read, axis=-1), rows, None, "embed"), self.w_join[...])

    def entries(
        self, vectors: Float[Array, "B T D"], features: Float[Array, "B T D"]
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T I"]]:
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
        """Returns float32 logits of the target's tokens by rows of its own; minus infinity for what they cannot say."""
        rows: Any = self.head
        logits = constrain(_logits(hidden, rows[...]), ..., "vocab")
        return logits if self.tokens is None else among_all(logits, self.tokens[...], self.config.vocab_size)


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
        check_tokens(ids, config.head_size, config.vocab_size)
        if made.tokens is not None:
            made.tokens.set_value(jnp.asarray(ids, jnp.int32))
    return nnx.split(made)
