"""The one decoding loop: prompts are read in chunks, then steps run on the device until every row has ended."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jax_smash.cache import Block, Write, after, reaching
from jax_smash.decode.state import DecodeState, LogProbs, Rows, Shared, lay_out, running_rows
from jax_smash.finish import LENGTH, RUNNING
from jax_smash.protocols import InRounds, Params, Strategy
from jax_smash.pytree import pytree, replace
from jax_smash.sharding import constrain


@pytree
class Chunk:
    """A piece of the prompts, padded on the right.

    Attributes:
      tokens: ids; anything at padding.
      valid: False at padding.
    """

    tokens: Int[Array, "B T"]
    valid: Bool[Array, "B T"]


@functools.partial(jax.jit, static_argnums=0, static_argnames=("slots", "output", "block", "log_probs"))
def init_rows(
    strategy: Strategy,
    params: Params,
    shared: Shared,
    key: Key[Array, "B"],
    *,
    slots: int,
    output: int,
    block: int,
    log_probs: int | None = None,
) -> Rows:
    """Makes empty rows, which do not run yet.

    Args:
      strategy: the method that the rows are for.
      params: its parameters.
      shared: holds the processors whose state the rows carry.
      key: one random key for each row.
      slots: cache capacity of each row.
      output: O, the emitted tokens that a row can hold.
      block: the most entries that one commit writes (the prefill chunk, or a draft tree).
      log_probs: record the log-probability of each emitted token and of this many likeliest ones; None records nothing.
    """
    model = strategy.target.bind(params["target"])
    batch = key.shape[0]
    vector = jax.eval_shape(model.embed, jax.ShapeDtypeStruct((batch, 1), jnp.int32))
    zeros = jnp.zeros((batch,), jnp.int32)
    rows = Rows(
        memory={"target": model.init_cache(batch, slots, block)} | strategy.init(params, batch, slots, block),
        pending=zeros,
        unread=zeros,
        token_length=zeros,
        output=jnp.zeros((batch, output), jnp.int32),
        output_length=zeros,
        limit=zeros,
        finish=jnp.full_like(zeros, LENGTH),
        key=key,
        processors=tuple(p.init(batch, model.vocab_size) for p in shared.processors),
        stop=zeros,
        forwards=zeros,
        last_hidden=jnp.zeros((batch, vector.shape[-1]), vector.dtype),
        log_probs=None
        if log_probs is None
        else LogProbs(
            chosen=jnp.zeros((batch, output), jnp.float32),
            top_values=jnp.zeros((batch, output, log_probs), jnp.float32),
            top_tokens=jnp.zeros((batch, output, log_probs), jnp.int32),
        ),
    )
    return lay_out(rows, constrain)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def prefill(
    strategy: Strategy, params: Params, state: DecodeState, chunk: Chunk
) -> tuple[DecodeState, Float[Array, "B T D"]]:
    """Reads a piece of the prompts into the cache. Donates `state`.

    Returns:
      The state, and the target's final hidden state of every entry.
    """
    rows = state.rows
    model = strategy.target.bind(params["target"])
    position = rows.token_length[:, None] + jnp.arange(chunk.tokens.shape[1], dtype=jnp.int32)[None]
    out = model.forward(model.embed(chunk.tokens), position, rows.cache, Block.causal(chunk.valid, prompt=True))
    count = chunk.valid.sum(axis=1, dtype=jnp.int32)
    last = jnp.take_along_axis(out.hidden, jnp.maximum(count - 1, 0)[:, None, None], axis=1)[:, 0]
    write = Write(position=position, count=after(count, last[:, 0]))
    rows = replace(
        rows.remembering(target=rows.cache.commit(out.block_kv, write)),
        token_length=rows.token_length + count,
        last_hidden=jnp.where((count > 0)[:, None], last, rows.last_hidden),
        processors=tuple(
            p.observe_prompt(s, chunk.tokens, chunk.valid)
            for p, s in zip(state.shared.processors, rows.processors, strict=True)
        ),
    )
    state = strategy.prefill(params, replace(state, rows=rows), chunk, out.hidden, out.taps)
    return lay_out(state, constrain), out.hidden


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def start(strategy: Strategy, params: Params, state: DecodeState) -> DecodeState:
    """Emits the first token of every row, from the prompt's last hidden state. Donates `state`."""
    # Divide the width as the head's is divided. With a whole vector per row, the head would be gathered.
    hidden = constrain(state.rows.last_hidden, "rows", "embed")
    state = replace(state, rows=replace(state.rows, last_hidden=hidden))
    return lay_out(strategy.start(params, state), constrain)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def decode(strategy: Strategy, params: Params, state: DecodeState, steps: Int[Array, ""]) -> DecodeState:
    """Runs steps until every row has ended, or `steps` of them. Donates `state`.

    A further call with the returned state continues where this one stopped. The text does not depend on how the steps
    are divided into calls.
    """

    def unfinished(carry: tuple[DecodeState, Array]) -> Bool[Array, ""]:
        state, done = carry
        return running_rows(state).any() & (done < steps)

    def step(carry: tuple[DecodeState, Array]) -> tuple[DecodeState, Array]:
        state, done = carry
        return lay_out(strategy.step(params, state), constrain), done + 1

    body = functools.partial(strategy.round, params, unfinished) if isinstance(strategy, InRounds) else step
    return jax.lax.while_loop(unfinished, body, (state, jnp.zeros_like(steps)))[0]


def open_turn(
    rows: Rows, *, limit: Int[Array, "B"], stop: Int[Array, "B"], reach: Int[Array, "B"] | None = None
) -> Rows:
    """Returns rows that are ready for a prompt. Their cache stays and their output is empty.

    The emitted tokens that are not in the cache (the pending token or its group) are no longer counted. The prompt must
    begin with them.

    Args:
      rows: fresh or ended rows.
      limit: new tokens that each row may emit; a row with 0 does not run.
      stop: the first state of the stop automaton for each row.
      reach: of every cache of the row that has one, the target's and a draft model's; None leaves it.
    """
    if reach is not None:
        rows = reaching(rows, reach)
    # Fields are donated, so no two of them may be the same array.
    return replace(
        rows,
        token_length=rows.token_length - rows.unread,
        unread=jnp.zeros_like(rows.unread),
        output_length=jnp.zeros_like(rows.finish),
        limit=limit,
        stop=stop,
        finish=jnp.where(limit > 0, RUNNING, LENGTH).astype(jnp.int32),
        forwards=jnp.zeros_like(rows.finish),
    )
