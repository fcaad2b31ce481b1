"""What decoding carries from step to step."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jax_smash.automaton import TokenAutomaton
from jax_smash.cache import KVCache
from jax_smash.protocols import LogitsProcessor
from jax_smash.pytree import pytree, replace
from jax_smash.sharding import constrain

State = TypeVar("State", "Rows", "DecodeState")

RUNNING = 0
LENGTH = 1
STOP_TOKEN = 2
STOP_STRING = 3
NOT_A_NUMBER = 4
FINISH_REASONS = ("running", "length", "stop_token", "stop_string", "not_a_number")
"""Why a row ended, by its `finish` code."""


@pytree
class LogProbs:
    """Log-probabilities of emitted tokens under the model itself, before any processor, in nats.

    Attributes:
      chosen: of each emitted token.
      top_values, top_tokens: the n likeliest tokens in its place, likeliest first.
    """

    chosen: Float[Array, "B O"]
    top_values: Float[Array, "B O n"]
    top_tokens: Int[Array, "B O n"]


@pytree
class Rows:
    """The rows of a batch: every leaf is `[B, …]`, so that a row can be taken out, put in or sharded.

    Attributes:
      cache: the target's cache; everything but the last `unread` tokens is in it.
      pending: the last emitted token, not yet in the cache.
      unread: how many of the last emitted tokens are not in the cache: the pending one, or the group that it ends.
      token_length: tokens of the sequence so far: prompt and emitted, those that are unread included.
      output: emitted tokens since the last prompt; slots past `output_length` hold garbage.
      output_length: how many were emitted.
      limit: how many may be emitted, at most O.
      finish: why the row ended; `RUNNING` while it has not.
      key: the row's random key; noise is drawn from it and the token's index in the sequence alone.
      processors: the state of each logits processor.
      stop: the state of the stop-string automaton; 0 where there is none.
      forwards: decode forwards of the target made while the row ran; prefill is left out.
      last_hidden: the target's final hidden state of the last prompt token.
      log_probs: None unless asked for.
      draft: what the method keeps of the row beside the target's cache; None in plain decoding.
    """

    cache: Any
    pending: Int[Array, "B"]
    unread: Int[Array, "B"]
    token_length: Int[Array, "B"]
    output: Int[Array, "B O"]
    output_length: Int[Array, "B"]
    limit: Int[Array, "B"]
    finish: Int[Array, "B"]
    key: Key[Array, "B"]
    processors: tuple[Any, ...]
    stop: Int[Array, "B"]
    forwards: Int[Array, "B"]
    last_hidden: Float[Array, "B D"]
    log_probs: LogProbs | None = None
    draft: Any = None


@pytree
class Shared:
    """What all rows read.

    Attributes:
      processors: logits processors; their settings are arrays of one value a row.
      stop_tokens: ids that end a row; −1 is padding.
      stops: the automaton of the stop strings; None where there are none.
      memory: what the method keeps across rows; None in plain decoding.
    """

    processors: tuple[LogitsProcessor, ...]
    stop_tokens: Int[Array, "n"]
    stops: TokenAutomaton | None = None
    memory: Any = None


@pytree
class DecodeState:
    """Rows and what they share: the one argument that a decoding loop donates and returns."""

    rows: Rows
    shared: Shared


def emit(
    state: DecodeState,
    token: Int[Array, "B P"],
    logit: Float[Array, "B P"],
    count: Int[Array, "B"] | None = None,
    *,
    log_probs: tuple[Float[Array, "B P"], Float[Array, "B P n"], Int[Array, "B P n"]] | None = None,
) -> DecodeState:
    """Appends tokens to every running row and ends the rows that one of them ends; none is emitted behind that one.

    A stop token is part of the output. A stop string ends the row at the token that completes it.

    Args:
      token: what may be emitted, in order.
      logit: the model's logit of each; a NaN there ends the row with `NOT_A_NUMBER`.
      count: how many of them a row emits; a row with 0 stays as it is. None for all.
      log_probs: of these tokens, where they are recorded.
    """
    rows, shared = state.rows, state.shared
    width = token.shape[1]
    place = jnp.arange(width, dtype=jnp.int32)[None]
    count = jnp.full_like(rows.finish, width) if count is None else count
    running = (rows.finish == RUNNING) & (count > 0)
    finish = jnp.where(rows.output_length[:, None] + place + 1 >= rows.limit[:, None], LENGTH, RUNNING)
    stops = None
    if shared.stops is not None:
        stops = shared.stops.trace(rows.stop, token)
        finish = jnp.where(shared.stops.matched(stops), STOP_STRING, finish)
    finish = jnp.where((token[:, :, None] == shared.stop_tokens[None, None]).any(-1), STOP_TOKEN, finish)
    finish = jnp.where(jnp.isnan(logit), NOT_A_NUMBER, finish)
    # The first token that ends the row is the last one emitted.
    ended = (finish != RUNNING).astype(jnp.int32)
    before = jnp.cumsum(ended, axis=1) - ended
    emitted = ((before == 0) & (place < count[:, None]) & running[:, None]).sum(1, dtype=jnp.int32)
    last = jnp.maximum(emitted - 1, 0)[:, None]
    # Past the end is dropped, so a finished row writes nothing.
    slot = jnp.where(place < emitted[:, None], rows.output_length[:, None] + place, rows.output.shape[1])
    processors = rows.processors
    for i in range(width):
        processors = tuple(
            p.advance(s, token[:, i], emitted > i) for p, s in zip(shared.processors, processors, strict=True)
        )
    rows = replace(
        rows,
        pending=jnp.where(running, _at(token, last), rows.pending),
        unread=jnp.where(running, 1, rows.unread).astype(jnp.int32),
        token_length=rows.token_length + emitted,
        output=_put(rows.output, slot, token),
        output_length=rows.output_length + emitted,
        finish=jnp.where(running, _at(finish, last), rows.finish).astype(jnp.int32),
        stop=rows.stop if stops is None else jnp.where(running, _at(stops, last), rows.stop),
        processors=processors,
        log_probs=rows.log_probs
        if rows.log_probs is None or log_probs is None
        else LogProbs(
            chosen=_put(rows.log_probs.chosen, slot, log_probs[0]),
            top_values=_put(rows.log_probs.top_values, slot, log_probs[1]),
            top_tokens=_put(rows.log_probs.top_tokens, slot, log_probs[2]),
        ),
    )
    return replace(state, rows=rows)


def processed_logits(
    state: DecodeState, logits: Float[Array, "B M V"], path: Int[Array, "B M P"]
) -> Float[Array, "B M V"]:
    """Returns the logits that tokens are chosen from.

    Args:
      logits: the target's, a row and node.
      path: tokens from the committed sequence to each node, padded with −1; P is 0 in plain decoding.
    """
    for processor, memory in zip(state.shared.processors, state.rows.processors, strict=True):
        logits = processor.apply(memory, logits, path)
    return logits


def lay_out(state: State, put: Callable[..., Any]) -> State:
    """Returns a state with every array put in its place on a mesh: its rows over the batch's axes, the rest whole.

    Args:
      state: rows, or rows with what they share; arrays, or their shapes.
      put: called with each array and the logical names of its leading axes; `sharding.constrain`, for one.
    """

    def put_node(node: Any) -> Any:
        if isinstance(node, KVCache):
            return jax.tree.map(lambda leaf: put(leaf, *KVCache.axes(leaf.shape)), node)
        return put(node, "batch")

    if isinstance(state, DecodeState):
        return replace(state, rows=lay_out(state.rows, put), shared=jax.tree.map(put, state.shared))
    return jax.tree.map(put_node, state, is_leaf=lambda x: isinstance(x, KVCache))


@jax.jit
def take_rows(rows: Rows, index: Int[Array, "R"]) -> Rows:
    """Returns some of the rows, repeated ones included."""
    return lay_out(jax.tree.map(lambda leaf: leaf[index], rows), constrain)


def running_rows(state: DecodeState) -> Bool[Array, "B"]:
    """Marks the rows that have not ended."""
    return state.rows.finish == RUNNING


def _at(values: Int[Array, "B P"], place: Int[Array, "B 1"]) -> Int[Array, "B"]:
    return jnp.take_along_axis(values, place, axis=1)[:, 0]


def _put(buffer: Array, slot: Int[Array, "B P"], value: Array) -> Array:
    return buffer.at[jnp.arange(buffer.shape[0], dtype=jnp.int32)[:, None], slot].set(
        value.astype(buffer.dtype), mode="drop"
    )
