"""DFlash's drafter: layers that fill the masked tokens of a block in one pass, from the target's own states."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block, BlockKV, KVCache, init_cache
from jax_smash.models.dflash_config import DFlashConfig
from jax_smash.models.layers import Keys, Layer, OneKey, RMSNorm, rows_axis, weight
from jax_smash.models.projection import project
from jax_smash.models.rope import longest, rotation
from jax_smash.sharding import constrain


class DFlash(nnx.Module):
    """Layers over a block of tokens, of which all but the first are masked. Holds weights only.

    The block's first entry is the pending token, at its own position, and each masked entry stands for the token at its
    position. In every layer, all entries of the block see each other, and they see the context: for each token that the
    target has read, a key and a value that the layer makes of the token's feature, which is joined of some of the
    target's taps and the same for all layers. What the layers make of a masked entry is multiplied with the target's
    rows of tokens. So the vectors of tokens and the head are the target's.

    Source: Chen et al. 2026, "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036).
    Differs: where the target has no token for a mask, the drafter has a vector of its own for it.
    """

    def __init__(self, config: DFlashConfig, *, rngs: Keys, dtype: Any = jnp.float32):
        layers, d = config.layers, config.d_model
        self.config = config
        self.w_join = weight(rngs, (len(config.taps) * d, d), ("embed", None), dtype, contracted=(0,))
        self.context_norm = RMSNorm(d, layers, rngs=rngs, dtype=dtype)
        self.layers = nnx.List([Layer(layers, config.kind, rngs=rngs, dtype=dtype) for _ in range(config.num_layers)])
        self.final_norm = RMSNorm(d, layers, rngs=rngs, dtype=dtype)
        self.mask = weight(rngs, (d,), (None,), dtype) if config.mask_token is None else None

    @property
    def dtype(self) -> Any:
        """What the drafter computes in, and its cache holds."""
        return self.final_norm.scale[...].dtype

    def context(
        self,
        taps: Sequence[Float[Array, "B T D"]],
        position: Int[Array, "B T"],
        block: Block,
        *,
        reach: Int[Array, "B"] | None = None,
        rows: str = "batch",
    ) -> BlockKV:
        """Returns the keys and values of tokens that the target has read, a pair a layer.

        Args:
          taps: of the target's forward, those that the configuration names.
          position: of each token.
          block: says which tokens there are.
          reach: of the cache that they go to; None where they are all of the context.
          rows: logical axis of their rows: `batch` in training, `rows` in decoding; see `layers.rows_axis`.
        """
        read = constrain(jnp.concatenate([tap.astype(self.dtype) for tap in taps], axis=-1), rows, None, "embed")
        feature = constrain(self.context_norm(project(read, self.w_join[...])), rows, None, "embed")
        reach = longest(position, block.valid) if reach is None else reach
        angles = rotation(self.config.rope, self.config.head_width, position, reach)
        # What attention itself makes of the features is not used, and so not computed.
        return tuple(layer.attention(feature, position, angles, None, block, 1)[1] for layer in self.layers)

    def masked(self, pending: Int[Array, "B A"], target: Any) -> Float[Array, "B A block D"]:
        """Returns the vectors of blocks that begin with these tokens.

        Args:
          pending: the tokens.
          target: bound, whose vectors of tokens are used.
        """
        first = target.embed(pending).astype(self.dtype)[:, :, None]
        if self.mask is not None:
            mask = self.mask[...]
        else:
            assert self.config.mask_token is not None
            mask = target.embed(jnp.full((1, 1), self.config.mask_token, jnp.int32)).astype(self.dtype)[0, 0]
        behind = (*first.shape[:2], self.config.block_size - 1, self.config.d_model)
        return jnp.concatenate([first, jnp.broadcast_to(mask, behind)], axis=2)

    def filled(
        self, vectors: Float[Array, "B T D"], position: Int[Array, "B T"], cache: KVCache | None, block: Block
    ) -> Float[Array, "B T D"]:
        """Returns what the target's rows of tokens are multiplied with, of each entry of one block or of several.

        Args:
          vectors: from `masked`.
          position: of each entry.
          cache: the context; None where it stands in the block as `earlier` entries.
          block: which entries see which.
        """
        reach = _reach(block) if cache is None else cache.reach
        angles = rotation(self.config.rope, self.config.head_width, position, reach)
        x = constrain(vectors, rows_axis(cache), None, "embed")
        for i, layer in enumerate(self.layers):
            past = None if cache is None else cache.layer(i)
            x, _ = layer(x, position, angles, past, block.layer(i))
        return self.final_norm(x)

    def init_cache(self, batch: int, slots: int, block: int) -> KVCache:
        """Makes an empty context of `slots` slots a row, for commits of at most `block` tokens."""
        config = self.config
        return init_cache(
            kinds=(config.kind,),
            layer_kinds=(config.kind,) * config.num_layers,
            window=config.window,
            batch=batch,
            slots=slots,
            block=block,
            num_kv_heads=config.num_kv_heads,
            head_width=config.head_width,
            dtype=self.dtype,
            follows_length=config.rope.follows_length,
        )


def _reach(block: Block) -> Int[Array, "B"] | None:
    """Returns the reach of the context that stands in a block, as of the context's own keys; None where none does."""
    if block.earlier is None:
        return None
    position = block.earlier.position
    return longest(position, block.valid[:, : position.shape[1]])


def abstract_dflash(config: DFlashConfig, dtype: Any = jnp.float32) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the drafter's structure, and its parameters as shapes, dtypes and logical axes without any memory."""
    return nnx.split(nnx.eval_shape(lambda: DFlash(config, rngs=OneKey(), dtype=dtype)))


def random_dflash(config: DFlashConfig, seed: int = 0, dtype: Any = jnp.float32) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the drafter's structure and randomly initialised parameters."""
    return nnx.split(DFlash(config, rngs=nnx.Rngs(seed), dtype=dtype))
