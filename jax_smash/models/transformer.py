"""The one configurable decoder-only transformer."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int
from qwix import QArray

from jax_smash.cache import Block, Entering, HeldCache, KeyValue, KVCache, Listening, SelectedCache, Sinks, init_cache
from jax_smash.config import ModelConfig
from jax_smash.models.head import likeliest_rows
from jax_smash.models.layers import Keys, Layer, OneKey, RMSNorm, rows_axis, weight
from jax_smash.models.projection import row_products
from jax_smash.models.rope import longest, rotations
from jax_smash.protocols import Forward, SparsePolicy
from jax_smash.quantise import gather, scores
from jax_smash.sampling.vocabulary import Likeliest
from jax_smash.sharding import constrain


class Transformer(nnx.Module):
    """A decoder-only transformer of any supported family; satisfies `CausalLM`. Holds weights only."""

    tree_blocks = True
    """Attention goes by the block's bits, and rotary embeddings by position."""

    continued_blocks = True
    """A block may have entries that earlier forwards read."""

    def __init__(self, config: ModelConfig, *, rngs: Keys, dtype: Any = jnp.float32):
        self.config = config
        table = (config.vocab_size, config.d_model)
        self.embedding = weight(rngs, table, ("vocab", "embed"), dtype, contracted=(1,))
        self.layers = nnx.List([Layer(config, kind, rngs=rngs, dtype=dtype) for kind in config.layer_kinds])
        self.final_norm = RMSNorm(config.d_model, config, rngs=rngs, dtype=dtype)
        self.head = None if config.tied_head else weight(rngs, table, ("vocab", "embed"), dtype, contracted=(1,))

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.config.vocab_size

    @property
    def dtype(self) -> Any:
        """What the model computes in, and its cache holds; weights may be int8."""
        return self.final_norm.scale[...].dtype

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Returns the input vector of each token."""
        vectors = gather(self.embedding[...], tokens, self.dtype)
        if self.config.embedding_scale != 1.0:
            vectors *= jnp.asarray(self.config.embedding_scale, vectors.dtype)
        return vectors

    def forward(
        self,
        inputs: Float[Array, "B T D"],
        position: Int[Array, "B T"],
        cache: KVCache | SelectedCache | HeldCache | Listening | None,
        block: Block,
        policy: SparsePolicy | None = None,
    ) -> Forward:
        """Runs all layers over a block of new entries. The cache is read, never written.

        Args:
          inputs: vectors, from `embed` or fused from several tokens.
          position: rotary position of each entry.
          cache: what is committed; None for a block without a past (training).
          block: which entries see which.
          policy: reserved for sparse attention; must be None.
        """
        if policy is not None:
            raise ValueError("policy must be None: this model attends to the whole cache")
        reach = longest(position, block.valid) if cache is None else cache.reach
        sinks = None if cache is None else cache.sinks
        angles = rotations(self.config, position, reach, endless=sinks is not None)
        far = None if sinks is None else rotations(self.config, sinks.place(position), reach, endless=True)
        x, taps, block_kv = constrain(inputs, rows_axis(cache), None, "embed"), [], []
        for i, layer in enumerate(self.layers):
            taps.append(x)
            if isinstance(cache, Listening):
                cache = cache.entered(Entering(i, layer, x, position, block))
            layer_cache = None if cache is None else cache.layer(i)
            of_layer = (angles[i], layer_cache, block.layer(i), None, None if far is None else far[i])
            x, key_value = _apply_layer(*nnx.split(layer), x, position, *of_layer)
            block_kv.append(key_value)
        taps.append(x)
        heard = cache.heard if isinstance(cache, Listening) else None
        return Forward(hidden=self.final_norm(x), taps=tuple(taps), block_kv=tuple(block_kv), policy_state=heard)

    def unembed(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Returns float32 logits of the token after each entry."""
        # Each device makes the logits of its tokens. Told of nothing but who reads them, XLA would gather the matrix.
        return constrain(self.logits_of(hidden, self._head), ..., "vocab")

    def likeliest(
        self, hidden: Float[Array, "*batch D"], n: int, *, total: bool = False, keep: bool = False
    ) -> Likeliest:
        """Returns the n likeliest tokens after each entry; large vocabularies are read in pieces.

        Args:
          hidden: after the final norm.
          n: at least 1.
          total: also add up.
          keep: also return all logits.
        """
        return likeliest_rows(hidden, self._head, self.logits_of, n, total=total, keep=keep)

    @property
    def _head(self) -> Float[Array, "V D"] | Float[QArray, "V D"]:
        return (self.embedding if self.head is None else self.head)[...]

    def rows_of(self, tokens: Int[Array, "X"]) -> Float[Array, "X D"] | Float[QArray, "X D"]:
        """Returns the head's rows of some tokens."""
        return jax.tree.map(lambda x: x[tokens], self._head)

    def logits_of(self, hidden: Float[Array, "*batch D"], head: Any) -> Float[Array, "*batch X"]:
        """Returns float32 logits of some rows of the head, or of all."""
        logits = scores(hidden, head) if isinstance(head, QArray) else row_products(hidden, head)
        if self.config.logits_divisor != 1.0:
            logits = logits / self.config.logits_divisor
        cap = self.config.final_softcap
        return cap * jnp.tanh(logits / cap) if cap else logits

    def init_cache(self, batch: int, slots: int, block: int, *, sinks: Sinks | None = None) -> KVCache:
        """Makes an empty cache.

        Args:
          batch: rows.
          slots: entries that a row may have.
          block: the most entries that one commit writes.
          sinks: what full-attention layers keep of them; None keeps all.
        """
        config = self.config
        return init_cache(
            kinds=config.kinds,
            layer_kinds=config.layer_kinds,
            window=config.window,
            batch=batch,
            slots=slots,
            block=block,
            num_kv_heads=config.held_kv_heads,
            head_width=config.head_width,
            dtype=self.dtype,
            follows_length=config.follows_length,
            sinks=sinks,
        )


@functools.partial(jax.jit, static_argnums=0)
def _apply_layer(graphdef: nnx.GraphDef, params: nnx.State, *inputs: Any) -> tuple[Array, KeyValue]:
    """Calls a layer. Jitted, so that layers of one kind are traced and lowered once, however many there are."""
    return nnx.merge(graphdef, params)(*inputs)


def abstract_params(config: ModelConfig, dtype: Any = jnp.float32) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the model's structure, and its parameters as shapes, dtypes and logical axes without any memory."""
    model = nnx.eval_shape(lambda: Transformer(config, rngs=OneKey(), dtype=dtype))
    return nnx.split(model)


def random_params(config: ModelConfig, seed: int = 0, dtype: Any = jnp.float32) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the model's structure and randomly initialised parameters."""
    # Not jitted as a whole: layers share the compiled initialisers, and one program for all would take far longer.
    return nnx.split(Transformer(config, rngs=nnx.Rngs(seed), dtype=dtype))
