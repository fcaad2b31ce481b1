"""Given text read as decoding reads it: a step for each token, with the cache as it then is."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.decode.autoregressive import Autoregressive
from jax_smash.decode.loop import Chunk, decode, init_rows, open_turn, prefill, start
from jax_smash.decode.state import DecodeState, LogProbs, Rows, Shared, take_rows
from jax_smash.models.rope import reach_of_text
from jax_smash.protocols import ModelDef
from jax_smash.pytree import pytree
from jax_smash.shapes import round_up

SLOT_MULTIPLE = 16


@pytree
class GivenText:
    """The logits processor that leaves one token to choose: the next of a given text.

    Its state counts the tokens that each row has seen.

    Attributes:
      tokens: of each row; after the last one, that one is given again and again.
    """

    tokens: Int[Array, "B T"]

    def init(self, batch: int, vocab_size: int) -> Int[Array, "B"]:
        """Makes the state of rows that have seen nothing."""
        return jnp.zeros((batch,), jnp.int32)

    def observe_prompt(self, state: Int[Array, "B"], tokens: Int[Array, "B T"], valid: Any) -> Int[Array, "B"]:
        """Counts prompt tokens."""
        return state + valid.sum(axis=1, dtype=jnp.int32)

    def advance(self, state: Int[Array, "B"], token: Int[Array, "B"], running: Any) -> Int[Array, "B"]:
        """Counts an emitted token."""
        return state + running.astype(jnp.int32)

    def apply(
        self, state: Int[Array, "B"], logits: Float[Array, "B M V"], path: Int[Array, "B M P"]
    ) -> Float[Array, "B M V"]:
        """Returns logits of −∞ but for the given token. Nodes behind others are not served: P is 0."""
        given = jnp.take_along_axis(self.tokens, jnp.minimum(state, self.tokens.shape[1] - 1)[:, None], axis=1)
        ids = jnp.arange(logits.shape[-1], dtype=jnp.int32)
        return jnp.where(ids[None, None] == given[:, :, None], logits, -jnp.inf)


@pytree
class Prompts:
    """Beginnings of texts, which are read at once as prompts are, each once for all its texts.

    Attributes:
      tokens: of R different beginnings, padded on the right.
      lengths: tokens of each, from 1 to P; one of 0 is nobody's.
      of: the prompt that each of B texts begins with.
    """

    tokens: Int[Array, "R P"]
    lengths: Int[Array, "R"]
    of: Int[Array, "B"]


def forced_log_probs(
    model_def: ModelDef,
    params: Any,
    tokens: Int[Array, "B T"],
    lengths: Int[Array, "B"],
    *,
    n: int = 0,
    prompts: Prompts | None = None,
) -> LogProbs:
    """Returns the log-probability of each token after the first, every token read by a step of plain decoding.

    Where a policy keeps or reads only a part of the cache, a token is thus scored by what the policy would have left
    it; a whole forward would show it all that stands before. Without one, both are equal but for rounding. A pure
    function: it may be called under `jit`, with `model_def` and `n` static.

    Args:
      model_def: the model, such as `load(name).definition`, or `sparsified(model, policy).definition`.
      params: what `model_def.bind` takes.
      tokens: texts, padded on the right.
      lengths: tokens of each text, from 1 to T.
      n: likeliest tokens to record in each place.
      prompts: with which the texts begin; None for the first token of each. A text with no further tokens sits out. A
        cache whose positions depend on how long its text will be takes a prompt for the longest of its texts.

    Returns:
      O = T − 1 entries, entry i of the token i behind the prompt; 0 behind a text's end, NaN from where logits were not
      numbers, or where a function of `from_apply` has no more positions.

    Raises:
      ValueError: there are fewer than two tokens.

    Source: TokenButler, section 4.3: the whole text is a decode task, without a prefill.
    """
    if prompts is None:
        of = jnp.arange(tokens.shape[0], dtype=jnp.int32)
        prompts = Prompts(tokens=tokens[:, :1], lengths=jnp.ones_like(of), of=of)
    rows = read_prompts(model_def, params, tokens, lengths, prompts, n=n)
    return log_probs_behind(model_def, params, tokens, lengths, prompts, rows, n=n)


def read_prompts(
    model_def: ModelDef,
    params: Any,
    tokens: Int[Array, "B T"],
    lengths: Int[Array, "B"],
    prompts: Prompts,
    *,
    n: int = 0,
) -> Rows:
    """Returns the R rows of prompts that have been read, with room for the texts that begin with them.

    Arguments and errors are those of `forced_log_probs`.
    """
    width = tokens.shape[1]
    if width < 2:
        raise ValueError(f"tokens must be at least 2 a row; got {width}")
    count, piece = prompts.tokens.shape
    roles, strategy = {"target": params}, Autoregressive(target=model_def, log_probs=n)
    shared = _shared(prompts.tokens)
    keys = jax.random.split(jax.random.key(0), count)  # Nothing is drawn.
    slots = round_up(width, SLOT_MULTIPLE)
    rows = init_rows(strategy, roles, shared, keys, slots=slots, output=width - 1, block=piece, log_probs=n)
    longest = jnp.zeros((count,), jnp.int32).at[prompts.of].max(lengths.astype(jnp.int32))
    config = getattr(model_def.bind(params), "config", None)
    reach = None if config is None else reach_of_text(config, prompt=longest, new=0)
    rows = open_turn(rows, limit=longest, stop=jnp.zeros_like(longest), reach=reach)
    valid = jnp.arange(piece, dtype=jnp.int32)[None] < prompts.lengths[:, None]
    state = DecodeState(rows=rows, shared=shared)
    return prefill(strategy, roles, state, Chunk(tokens=prompts.tokens, valid=valid))[0].rows


def log_probs_behind(
    model_def: ModelDef,
    params: Any,
    tokens: Int[Array, "B T"],
    lengths: Int[Array, "B"],
    prompts: Prompts,
    rows: Rows,
    *,
    n: int = 0,
) -> LogProbs:
    """Returns the log-probabilities of `forced_log_probs` behind prompts that have been read.

    Args:
      model_def, params, tokens, lengths, prompts, n: as there.
      rows: from `read_prompts`; their cache is this model's.
    """
    lengths = lengths.astype(jnp.int32)
    strategy = Autoregressive(target=model_def, log_probs=n)
    read = prompts.lengths[prompts.of]
    longest = getattr(model_def, "max_positions", None)
    # The last token is never read.
    limit = jnp.maximum((lengths if longest is None else jnp.minimum(lengths, longest + 1)) - read, 0)
    rows = open_turn(take_rows(rows, prompts.of), limit=limit, stop=jnp.zeros_like(lengths))
    roles, state = {"target": params}, DecodeState(rows=rows, shared=_shared(tokens))
    state = decode(strategy, roles, start(strategy, roles, state), jnp.int32(tokens.shape[1]))
    return _told(state.rows.log_probs, state.rows.output_length, lengths - read)


def _shared(tokens: Int[Array, "B T"]) -> Shared:
    # The state is donated, and the tokens belong to the caller.
    return Shared(processors=(GivenText(tokens=jnp.copy(tokens)),), stop_tokens=jnp.full((1,), -1, jnp.int32))


def _told(found: LogProbs | None, read: Int[Array, "B"], wanted: Int[Array, "B"]) -> LogProbs:
    """Returns the records with 0 behind each text's end, and NaN in places that were not reached."""
    assert found is not None
    place = jnp.arange(found.chosen.shape[1], dtype=jnp.int32)[None]
    missing = jnp.where(place < wanted[:, None], jnp.float32(jnp.nan), 0.0)
    reached = place < read[:, None]
    return LogProbs(
        chosen=jnp.where(reached, found.chosen, missing),
        top_values=jnp.where(reached[:, :, None], found.top_values, missing[:, :, None]),
        top_tokens=jnp.where(reached[:, :, None], found.top_tokens, 0),
    )
