"""A drafter's layer over pairs: the feature of a token, and the vector of the token that follows it."""

from typing import Any

from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block, BlockKV, KVCache, init_cache
from jax_smash.config import AttentionKind
from jax_smash.models.layers import MLP, Attention, RMSNorm, rows_axis
from jax_smash.models.rope import longest, rotation
from jax_smash.pytree import pytree
from jax_smash.sampling.vocabulary import Likeliest
from jax_smash.sharding import constrain

FULL: AttentionKind = "full"


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


class PairLayer(nnx.Module):
    """One layer over pairs; what is read of a pair and made of the residual is each drafter's own.

    The entry of feature i and token i + 1 has position i, and tells of token i + 2. The vectors are the target's own.
    """

    config: Any
    attention: Attention
    mlp: MLP
    mlp_norm: RMSNorm

    @property
    def dtype(self) -> Any:
        """What the drafter computes in, and its cache holds."""
        return self.mlp_norm.scale[...].dtype

    def features(self, hidden: Float[Array, "B T _"], taps: tuple[Float[Array, "B T _"], ...]) -> Float[Array, "B T D"]:
        """Returns the features of entries that the target has read, from its hidden states and all of its taps."""
        raise NotImplementedError

    def logits(self, hidden: Float[Array, "B T D"], target: Any) -> Float[Array, "B T V"]:
        """Returns float32 logits behind entries.

        Args:
          hidden: of `EagleForward`.
          target: bound, whose head is used where the drafter has none.
        """
        raise NotImplementedError

    def guesses(self, hidden: Float[Array, "B T D"], n: int, target: Any, *, total: bool = False) -> Likeliest:
        """Returns the n likeliest tokens behind each entry; arguments as of `logits`.

        Args:
          hidden: of `EagleForward`.
          n: at most as many as the drafter can say.
          target: bound.
          total: also add up all logits' exponentials.
        """
        raise NotImplementedError

    def entries(
        self, vectors: Float[Array, "B T D"], features: Float[Array, "B T D"]
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T I"]]:
        """Returns what the layer's residual begins with, and what its attention reads."""
        raise NotImplementedError

    def made_of(self, x: Float[Array, "B T D"]) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"]]:
        """Returns what the head reads of the layer's residual, and the feature that goes on."""
        raise NotImplementedError

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
          features: of the tokens before them: from `features`, or of an earlier forward.
          position: of the features.
          cache: what is committed; None for a block without a past.
          block: which entries see which.
          num_queries: returns what was made of the last so many entries alone; by default of all.
        """
        config, asked = self.config, num_queries or vectors.shape[1]
        reach = longest(position, block.valid) if cache is None else cache.reach
        angles = rotation(config.rope, config.head_width, position, reach)
        rows = rows_axis(cache)
        start, read = (constrain(x, rows, None, "embed") for x in self.entries(vectors, features))
        past = None if cache is None else cache.layer(0)
        out, key_value = self.attention(read, position, angles, past, block.layer(0), asked)
        x = start[:, -asked:] + constrain(out, rows, None, "embed")
        x = x + constrain(self.mlp(self.mlp_norm(x)), rows, None, "embed")
        hidden, feature = self.made_of(x)
        return EagleForward(hidden=hidden, feature=feature, block_kv=(key_value,))

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
