"""What decoding carries from step to step."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jax_smash.automaton import TokenAutomaton
from jax_smash.cache import KVCache, SelectedCache, Write, after
from jax_smash.draft.context import Context
from jax_smash.finish import LENGTH, NOT_A_NUMBER, RUNNING, STOP_STRING, STOP_TOKEN
from jax_smash.protocols import LogitsProcessor, Needs
from jax_smash.pytree import pytree, replace
from jax_smash.sampling import process
from jax_smash.sharding import constrain

State = TypeVar("State", "Rows", "DecodeState")


@pytree
class LogProbs:
    """Log-probabilities of emitted tokens, in nats.

    They are those under the model itself, before any processor, unless the strategy says otherwise.

    Attributes:
      chosen: of each emitted token.
      top_values, top_tokens: the log-probabilities and ids of the n likeliest tokens in its place, likeliest first.
    """

    chosen: Float[Array, "B O"]
    top_values: Float[Array, "B O n"]
    top_tokens: Int[Array, "B O n"]


@pytree
class Rows:
    """The rows of a batch. Every leaf is `[B, …]`, so that a row can be removed, inserted or sharded.

    Attributes:
      memory: what modules keep of the row, by role: under `target` the target's cache, which holds everything but the
        last `unread` tokens; under other roles what the method keeps beside it.
      pending: the last emitted token, not yet in the cache.
      unread: number of the last emitted tokens that are not in the cache: the pending one, or the group that it ends.
      token_length: tokens of the sequence so far: the prompt and all emitted tokens, unread ones included.
      output: tokens emitted since the last prompt; entries past `output_length` hold garbage.
      output_length: number of tokens emitted since the last prompt.
      limit: number of tokens that may be emitted, at most O.
      finish: why the row ended; `RUNNING` until then.
      key: the row's random key; noise depends only on it and the token's index in the sequence.
      processors: the state of each logits processor.
      stop: the state of the stop-string automaton; 0 where there is none.
      forwards: decode forwards of the target made while the row ran; prefill is left out.
      last_hidden: the target's final hidden state of the last prompt token.
      log_probs: None unless asked for.
    """

    memory: dict[str, Any]
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

    @property
    def cache(self) -> Any:
        """The target's cache."""
        return self.memory["target"]

    def remembering(self, **memory: Any) -> "Rows":
        """Returns the rows with other memory under some roles."""
        return replace(self, memory=self.memory | memory)


@pytree
class Shared:
    """What all rows read.

    Attributes:
      processors: logits processors; their settings are arrays of one value a row.
      stop_tokens: ids that end a row; −1 is padding.
      stops: the automaton of the stop strings; None where there are none.
      memory: what the method keeps across rows, by role.
    """

    processors: tuple[LogitsProcessor, ...]
    stop_tokens: Int[Array, "n"]
    stops: TokenAutomaton | None = None
    memory: dict[str, Any] = dataclasses.field(default_factory=dict)


@pytree
class DecodeState:
    """The rows and what they share. The decoding loop takes this one argument, donates it and returns it."""

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
    """Appends tokens to every running row. A token that ends its row is the last one that the row emits.

    A stop token is part of the output. A stop string ends the row at the token that completes it.

    Args:
      token: the tokens to emit, in order.
      logit: the model's logit of each token; NaN ends the row with `NOT_A_NUMBER`.
      count: number of tokens to emit in each row; a row with 0 stays unchanged. None emits all.
      log_probs: log-probabilities of these tokens, where they are recorded.
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
    # Writes past the end are dropped, so a finished row writes nothing.
    slot = jnp.where(place < emitted[:, None], rows.output_length[:, None] + place, rows.output.shape[1])

    def advance(i: Array, memory: tuple[Any, ...]) -> tuple[Any, ...]:
        one = jax.lax.dynamic_index_in_dim(token, i, axis=1, keepdims=False)
        return tuple(p.advance(s, one, emitted > i) for p, s in zip(shared.processors, memory, strict=True))

    processors = advance(jnp.int32(0), rows.processors) if width == 1 else rows.processors
    if width > 1 and processors:
        processors = jax.lax.fori_loop(jnp.int32(0), emitted.max(), advance, processors)
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


def committed(
    state: DecodeState,
    block_kv: Any,
    position: Int[Array, "B T"],
    count: Int[Array, "B"],
    path: Int[Array, "B P"] | None = None,
    *,
    ran: Bool[Array, "B"],
) -> DecodeState:
    """Ends a step: writes what the target read into its cache, and counts the forward.

    Args:
      state: after the step's tokens were emitted, so that every read of the cache comes before the write.
      block_kv: what the target's forward made of its entries.
      position: of each entry.
      count: entries to write a row.
      path: which entries, in order; None takes them from the front.
      ran: rows that took part.
    """
    rows = state.rows
    write = Write(position=position, count=after(count, rows.pending), path=path)
    rows = rows.remembering(target=rows.cache.commit(block_kv, write))
    return replace(state, rows=replace(rows, forwards=rows.forwards + ran.astype(jnp.int32)))


def processed_logits(
    state: DecodeState, logits: Float[Array, "B M V"], path: Int[Array, "B M P"]
) -> Float[Array, "B M V"]:
    """Returns the logits from which tokens are chosen.

    Args:
      logits: the target's, for each row and node.
      path: tokens from the committed sequence to each node, padded with −1; P is 0 in plain decoding.
    """
    return process(state.shared.processors, state.rows.processors, logits, path)


def lay_out(state: State, put: Callable[..., Any]) -> State:
    """Returns a state with every array placed on a mesh: rows divided over the batch axes, everything else replicated.

    Args:
      state: rows, or rows with what they share; arrays, or their shapes.
      put: called with each array and the logical names of its leading axes, such as `sharding.constrain`.
    """

    def put_node(node: Any) -> Any:
        if isinstance(node, SelectedCache):
            return node.placed(put)
        if isinstance(node, KVCache):
            return jax.tree.map(lambda leaf: put(leaf, *KVCache.axes(leaf.shape)), node)
        return put(node, "batch")

    if isinstance(state, DecodeState):
        return replace(state, rows=lay_out(state.rows, put), shared=jax.tree.map(put, state.shared))
    return jax.tree.map(put_node, state, is_leaf=lambda x: isinstance(x, (KVCache, SelectedCache)))


@jax.jit
def take_rows(rows: Rows, index: Int[Array, "R"]) -> Rows:
    """Returns the rows with these indices, which may repeat."""
    return lay_out(jax.tree.map(lambda leaf: leaf[index], rows), constrain)


def context(state: DecodeState, needs: Needs = Needs()) -> Context:  # noqa: B008 - frozen
    """Returns what a drafter sees of the rows."""
    rows = state.rows
    return Context(
        pending=rows.pending,
        token_length=rows.token_length,
        running=running_rows(state),
        key=rows.key,
        processors=state.shared.processors,
        processed=rows.processors,
        cache=rows.cache if needs.cache else None,
    )


def running_rows(state: DecodeState) -> Bool[Array, "B"]:
    """Marks the rows that have not ended."""
    return state.rows.finish == RUNNING


def _at(values: Int[Array, "B P"], place: Int[Array, "B 1"]) -> Int[Array, "B"]:
    return jnp.take_along_axis(values, place, axis=1)[:, 0]


def _put(buffer: Array, slot: Int[Array, "B P"], value: Array) -> Array:
    return buffer.at[jnp.arange(buffer.shape[0], dtype=jnp.int32)[:, None], slot].set(
        value.astype(buffer.dtype), mode="drop"
    )
