"""Any function from tokens to logits as a model: its cache is the text so far, which every step reads again."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block, Write
from jax_smash.loading import Model
from jax_smash.platform import prepare_devices
from jax_smash.protocols import Forward
from jax_smash.pytree import pytree, replace

Apply = Callable[[Any, Int[Array, "B T"]], Float[Array, "B T V"]]
"""From parameters and tokens to logits of the token after each: causal, and the same whenever it is called."""

LARGEST_VOCABULARY = 2**24
"""Tokens that float32, in which a forward's inputs are, can tell apart."""

CHECKED_TOKENS = 16
"""Length of the text that tells whether a function is causal."""

CLOSE = 1e-2
"""Of the largest logit: by no more than this may a logit change with what stands behind it, rounding being no fault."""


def from_apply(
    apply_fn: Apply,
    params: Any = None,
    *,
    tokenizer: Any = None,
    stop_tokens: Sequence[int] | None = None,
    max_positions: int | None = None,
    name: str = "apply_fn",
    check: bool = True,
) -> Model:
    """Makes a model of a function that maps tokens to logits, to be decoded by `generate`.

    Every step calls the function on the whole of each row, `[B, slots]`, padded on the right: a causal function does
    not see the padding. So a step costs what reading the text costs, and there is nothing to fall out of step. Batches
    of unequal prompts, sampling, processors, streaming and grammars work as with any model. Drafted chains
    (`tree="chain-4"`) are right, and worth more than elsewhere: one call checks all of a chain. Trees are refused, for
    a function of tokens alone cannot be told which of them see each other.

    Args:
      apply_fn: called as `apply_fn(params, tokens)` with int32 tokens `[B, T]`; returns logits `[B, T, V]` of any float
        dtype. It is traced, and compiled for each B and T.
      params: passed to it; arrays in any pytree. What the function closes over is compiled in as a constant.
      tokenizer: a Hugging Face tokenizer, for prompts of text and for chats; None takes tokens alone.
      stop_tokens: ids that end a text; None takes the tokenizer's.
      max_positions: the longest text that the function reads; None for no limit.
      name: of the model, in what is printed.
      check: call the function once, on two short texts, to see that it is causal.

    Raises:
      TypeError: the function returns something else, or parameters are no arrays.
      ValueError: the logits have another shape, or depend on later tokens; a stop token is no token.
      OSError: `JAX_PLATFORMS` names a platform that JAX cannot use.
    """
    prepare_devices()
    params = _arrays({} if params is None else params)
    vocab_size = _vocab_size(apply_fn, params, max_positions)
    if stop_tokens is None:
        stop_tokens = () if tokenizer is None or tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    for token in stop_tokens:
        if not 0 <= token < vocab_size:
            raise ValueError(f"stop_tokens must be from 0 to {vocab_size - 1}; got {token}")
    if check:
        _check_causal(apply_fn, params, vocab_size, max_positions)
    return Model(
        name=name,
        definition=AppliedDef(apply_fn=apply_fn, vocab_size=vocab_size, max_positions=max_positions),
        params={"target": params},
        tokenizer=tokenizer,
        stop_tokens=tuple(stop_tokens),
    )


@pytree
class TextCache:
    """The text of each row; it stands where a transformer has keys and values.

    Attributes:
      tokens: those that were read; 0 behind them.
      slot_length: how many were.
    """

    tokens: Int[Array, "B S"]
    slot_length: Int[Array, "B"]

    @property
    def slots(self) -> int:
        """Capacity in slots."""
        return self.tokens.shape[1]

    def commit(self, block_kv: Any, write: Write) -> "TextCache":
        """Returns the text with the entries behind it that are kept."""
        tokens, count = block_kv[0][0], write.count
        if write.path is not None:
            tokens = jnp.take_along_axis(tokens, write.path, axis=1)
        place = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        slot = jnp.where(place < count[:, None], self.slot_length[:, None] + place, self.slots)
        return replace(self, tokens=_put(self.tokens, slot, tokens), slot_length=self.slot_length + count)


@dataclasses.dataclass(frozen=True)
class AppliedDef:
    """A function from tokens to logits, as strategies hold it: two are the same where their functions are.

    Attributes:
      apply_fn: the function.
      vocab_size: V.
      max_positions: the longest text that it reads; None for no limit.
    """

    apply_fn: Apply
    vocab_size: int
    max_positions: int | None = None

    def bind(self, params: Any) -> "Applied":
        """Returns the function with these parameters."""
        return Applied(self.apply_fn, self.vocab_size, params, max_positions=self.max_positions)


@dataclasses.dataclass(frozen=True)
class Applied:
    """A function from tokens to logits with its parameters; satisfies `CausalLM`.

    A forward's inputs are vectors as wide as what comes out of it, so a token's vector is its id, then zeros up to V;
    what comes out are the logits themselves, and `unembed` has nothing to do. Compiled, neither zeros nor copies are
    left.

    Attributes:
      apply_fn: the function.
      vocab_size: V.
      params: passed to it.
      max_positions: the longest text that it reads, which bounds every cache; None for no limit.
    """

    apply_fn: Apply
    vocab_size: int
    params: Any
    max_positions: int | None = None

    tree_blocks = False
    """An entry sees all that stand before it."""

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        """Returns each token's id as the first entry of a vector."""
        return jnp.pad(tokens[:, :, None].astype(jnp.float32), ((0, 0), (0, 0), (0, self.vocab_size - 1)))

    def forward(
        self,
        inputs: Float[Array, "B T V"],
        position: Int[Array, "B T"],
        cache: TextCache | None,
        block: Block,
        policy: Any = None,
    ) -> Forward:
        """Reads each row's text with the valid entries behind it, one behind the other."""
        if policy is not None:
            raise ValueError("policy must be None: the text is read whole")
        batch, width = position.shape
        cache = _empty(batch, width) if cache is None else cache
        tokens = inputs[:, :, 0].astype(jnp.int32)
        place = cache.slot_length[:, None] + jnp.cumsum(block.valid, axis=1, dtype=jnp.int32) - 1
        # Past the end is dropped: of a draft, what no row has room to emit.
        text = _put(cache.tokens, jnp.where(block.valid, place, cache.slots), tokens)
        logits = self.apply_fn(self.params, text)
        asked = jnp.clip(place, 0, cache.slots - 1)[:, :, None]
        hidden = jnp.take_along_axis(logits, asked, axis=1).astype(jnp.float32)
        return Forward(hidden=hidden, taps=(), block_kv=((tokens, tokens),))

    def unembed(self, hidden: Float[Array, "*batch V"]) -> Float[Array, "*batch V"]:
        """Returns the logits that `forward` made."""
        return hidden

    def init_cache(self, batch: int, slots: int, block: int) -> TextCache:
        """Makes empty texts of `slots` slots a row, or of as many as the function has positions."""
        return _empty(batch, min(slots, self.max_positions or slots))


def _empty(batch: int, slots: int) -> TextCache:
    return TextCache(tokens=jnp.zeros((batch, slots), jnp.int32), slot_length=jnp.zeros((batch,), jnp.int32))


def _put(text: Int[Array, "B S"], slot: Int[Array, "B T"], tokens: Int[Array, "B T"]) -> Int[Array, "B S"]:
    row = jnp.arange(text.shape[0], dtype=jnp.int32)[:, None]
    return text.at[row, slot].set(tokens, mode="drop")


def _arrays(params: Any) -> Any:
    def array(path: Any, leaf: Any) -> jax.Array:
        if not hasattr(leaf, "dtype") and not isinstance(leaf, (bool, int, float, complex)):
            raise TypeError(f"params must be arrays; got {type(leaf).__name__} at {jax.tree_util.keystr(path)}")
        return jnp.asarray(leaf)

    return jax.tree_util.tree_map_with_path(array, params)


def _vocab_size(apply_fn: Apply, params: Any, max_positions: int | None) -> int:
    shape = (2, min(CHECKED_TOKENS, max_positions or CHECKED_TOKENS))
    found = jax.eval_shape(apply_fn, params, jax.ShapeDtypeStruct(shape, jnp.int32))
    if not isinstance(found, jax.ShapeDtypeStruct):
        raise TypeError(f"apply_fn must return an array of logits [B, T, V]; got {type(found).__name__}")
    if found.ndim != 3 or found.shape[:2] != shape:
        raise ValueError(
            f"apply_fn must return logits [B, T, V]; for tokens {list(shape)} it returned {list(found.shape)}"
        )
    if not jnp.issubdtype(found.dtype, jnp.floating):
        raise TypeError(f"apply_fn must return logits of a float dtype; got {found.dtype}")
    if found.shape[2] > LARGEST_VOCABULARY:
        raise ValueError(f"the vocabulary must be at most {LARGEST_VOCABULARY} tokens; got {found.shape[2]}")
    return found.shape[2]


def _check_causal(apply_fn: Apply, params: Any, vocab_size: int, max_positions: int | None) -> None:
    """Refuses a function whose logits change with later tokens, or from row to row."""
    length = min(CHECKED_TOKENS, max_positions or CHECKED_TOKENS)
    half = length // 2
    tokens = np.tile(np.arange(length, dtype=np.int32) % vocab_size, (2, 1))
    tokens[1, half:] = (tokens[0, half] + 1) % vocab_size  # Not the same tokens in another order: some take means.
    logits = np.asarray(jax.jit(apply_fn)(params, jnp.asarray(tokens)), np.float32)[:, :half]
    # A token that is never said may have a logit of minus infinity.
    logits = np.where(np.isfinite(logits).all(0), logits, 0.0)
    change = np.abs(logits[0] - logits[1]).max(initial=0.0)
    if change > CLOSE * np.abs(logits).max(initial=0.0):
        raise ValueError(
            f"apply_fn must be causal, and must not be random: the logits of the first {half} tokens changed by "
            f"{change:.3g} with the tokens behind them"
        )
