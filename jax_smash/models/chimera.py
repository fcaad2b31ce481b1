"""Chimera's drafter: one layer over the target's hidden states and codes of short grams, and a head for each depth."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block, BlockKV, KVCache, init_cache
from jax_smash.models.chimera_config import FULL, ChimeraConfig
from jax_smash.models.grams import ENCODERS, vectors_of
from jax_smash.models.layers import Keys, Layer, OneKey, RMSNorm, rows_axis, weight
from jax_smash.models.projection import project
from jax_smash.models.rope import longest, rotation
from jax_smash.pytree import pytree
from jax_smash.sharding import constrain


@pytree
class ChimeraForward:
    """The result of one forward of the layer.

    Attributes:
      hidden: what is made of the entries that were asked for, in place of the target's hidden states.
      block_kv: keys and values of all new entries, for the cache's `commit`.
    """

    hidden: Float[Array, "B Q D"]
    block_kv: BlockKV


class Chimera(nnx.Module):
    """Three modules: an encoder of grams, a layer over the whole context, and residual heads. Holds weights only.

    The layer has two entries for each token i, both at position i: the target's hidden state behind its final norm,
    which is there once the target has read the token, and the code of the gram that ends with it. What it makes of a
    gram's entry is to be what the target's hidden state of that token will be. Where the target has read n tokens,
    head h guesses token n + 1 + h (from 0) by the target's own rows of

        full + [hidden of token n − 1, full] W_h,

    full being what the layer made of token n + h: of the pending token for head 0, else of a drafted one. Without
    residual heads it is full + full W_h.

    Source: Zeng et al. 2024, "Chimera: A Lossless Decoding Method for Accelerating Large Language Models Inference by
    Fusing all Tokens", section 4.1.
    Differs: a head is a matrix before the target's rows, not a matrix of the vocabulary's size, and begins at 0. What
    the layer makes is normed, as the target's hidden states are.
    """

    def __init__(self, config: ChimeraConfig, *, rngs: Keys, dtype: Any = jnp.float32):
        d, layer = config.d_model, config.layer
        self.config = config
        self.grams: Any = ENCODERS[config.gram_encoder](config, rngs=rngs, dtype=dtype)
        self.layer = Layer(layer, FULL, rngs=rngs, dtype=dtype)
        self.final_norm = RMSNorm(d, layer, rngs=rngs, dtype=dtype)
        read = 2 * d if config.residual_heads else d
        shape, axes = (config.decoding_heads, read, d), (None, "embed", None)
        self.heads = weight(rngs, shape, axes, dtype, jax.nn.initializers.zeros, contracted=(1,))

    @property
    def dtype(self) -> Any:
        """What the drafter computes in, and its cache holds."""
        return self.final_norm.scale[...].dtype

    def codes(self, grams: Int[Array, "B T g"], target: Any) -> Float[Array, "B T D"]:
        """Returns the codes of grams.

        Args:
          grams: tokens, as `grams.grams_of` returns them.
          target: bound, whose vectors of tokens are used.

        Raises:
          ValueError: the drafter encodes texts, not grams.
        """
        if self.config.encodes_text:
            raise ValueError(
                f"a Chimera drafter with gram_encoder {self.config.gram_encoder} does not draft: it encodes all of the "
                "text, and is there to be compared with those that encode grams"
            )
        first_stands_in = self.config.gram_encoder == "residual"
        return self.grams(vectors_of(grams, target, first_stands_in=first_stands_in).astype(self.dtype))

    def text_codes(
        self,
        tokens: Int[Array, "B T"],
        position: Int[Array, "B T"],
        cache: KVCache | None,
        block: Block,
        target: Any,
    ) -> tuple[Float[Array, "B T D"], BlockKV]:
        """Returns the codes of new tokens of a drafter that encodes texts, and what its cache is given of them.

        Args:
          tokens: in order.
          position: of each.
          cache: of the encoder, from `init_text_cache`; None for a block without a past.
          block: which tokens see which.
          target: bound, whose vectors of tokens are used.
        """
        return self.grams(target.embed(tokens).astype(self.dtype), position, cache, block)

    def forward(
        self,
        entries: Float[Array, "B T D"],
        position: Int[Array, "B T"],
        cache: KVCache | None,
        block: Block,
        num_queries: int | None = None,
    ) -> ChimeraForward:
        """Reads new entries. The cache is read, never written.

        Args:
          entries: the target's hidden states, and codes of grams.
          position: of the token of each.
          cache: what is committed; None for a block without a past.
          block: which entries see which.
          num_queries: returns what was made of the last so many entries alone; by default of all.
        """
        config = self.config
        reach = longest(position, block.valid) if cache is None else cache.reach
        angles = rotation(config.rope, config.head_width, position, reach)
        past = None if cache is None else cache.layer(0)
        x = constrain(entries.astype(self.dtype), rows_axis(cache), None, "embed")
        made, key_value = self.layer(x, position, angles, past, block.layer(0), num_queries)
        return ChimeraForward(hidden=self.final_norm(made), block_kv=(key_value,))

    def vectors(
        self, last: Float[Array, "B A D"], full: Float[Array, "B A D"], head: Int[Array, ""] | int
    ) -> Float[Array, "B A D"]:
        """Returns what the target's rows of tokens are multiplied with.

        Args:
          last: the target's hidden state of the last token that it has read. Residual heads alone use it.
          full: what the layer made of the token whose follower is guessed.
          head: that guesses, from 0.
        """
        w = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, head, keepdims=False), self.heads[...])
        read = jnp.concatenate([last.astype(full.dtype), full], axis=-1) if self.config.residual_heads else full
        return full + project(read, w)

    def init_cache(self, batch: int, slots: int, block: int) -> KVCache:
        """Makes an empty cache for `slots` tokens a row, of two entries each, and commits of at most `block` tokens."""
        return self._cache(batch, 2 * slots, 2 * block)

    def init_text_cache(self, batch: int, slots: int, block: int) -> KVCache:
        """Makes an empty cache for the encoder of a drafter that encodes texts, an entry a token."""
        return self._cache(batch, slots, block)

    def _cache(self, batch: int, slots: int, block: int) -> KVCache:
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


def abstract_chimera(config: ChimeraConfig, dtype: Any = jnp.float32) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the drafter's structure, and its parameters as shapes, dtypes and logical axes without any memory."""
    return nnx.split(nnx.eval_shape(lambda: Chimera(config, rngs=OneKey(), dtype=dtype)))


def random_chimera(config: ChimeraConfig, seed: int = 0, dtype: Any = jnp.float32) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the drafter's structure and randomly initialised parameters; heads are 0."""
    return nnx.split(Chimera(config, rngs=nnx.Rngs(seed), dtype=dtype))
