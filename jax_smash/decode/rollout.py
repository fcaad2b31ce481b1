"""Texts sampled inside other people's programs: a pure function for training by reinforcement."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from jax_smash.decode.autoregressive import Autoregressive
from jax_smash.decode.loop import Chunk, decode, init_rows, open_turn, prefill, start
from jax_smash.decode.state import DecodeState, Shared
from jax_smash.finish import STOP_TOKEN
from jax_smash.models.rope import reach_of_text
from jax_smash.protocols import LogitsProcessor, ModelDef, longest_block
from jax_smash.pytree import pytree
from jax_smash.sampling import MinP, Temperature, TopK, TopP
from jax_smash.shapes import round_up

PROMPT_CHUNK = 512
"""Prompt tokens of a row that one forward reads."""

SLOT_MULTIPLE = 16


@pytree
class Rollout:
    """Sampled continuations.

    Attributes:
      tokens: of each row, in order; 0 from `length` on.
      log_probs: of each token, in nats, under the distribution that it was drawn from, processors included; 0 from
        `length` on.
      length: tokens of each row, a stop token included: fewer than asked for also where the model's context is full.
      stopped: the row ended with a stop token.
    """

    tokens: Int[Array, "B O"]
    log_probs: Float[Array, "B O"]
    length: Int[Array, "B"]
    stopped: Bool[Array, "B"]

    @property
    def valid(self) -> Bool[Array, "B O"]:
        """Marks the tokens before `length`."""
        return _before(self.length, self.tokens.shape[1])


def rollout(
    model_def: ModelDef,
    params: Any,
    tokens: Int[Array, "B T"],
    key: Key[Array, "..."] | Shaped[Array, "..."],
    *,
    max_new_tokens: int,
    lengths: Int[Array, "B"] | None = None,
    temperature: float | Float[Array, "..."] = 1.0,
    processors: Sequence[LogitsProcessor] = (),
    stop_tokens: Sequence[int] = (),
) -> Rollout:
    """Samples a continuation of each prompt.

    A pure function of its arrays: it may be called under the caller's `jit` and mesh, and other weights, prompts, keys
    or temperatures of the same shapes compile nothing. It runs until every row has ended, without the host. No gradient
    flows through it.

    A row's continuation depends on its prompt, its key and the weights, and on no other row. With a temperature of 1
    and no processors, `log_probs` are those of the model itself.

    Args:
      model_def: the model, such as `load(name).definition` or `NnxModel(graphdef)`.
      params: what `model_def.bind` takes, such as `load(name).params["target"]`.
      tokens: prompts, padded on the right.
      key: one for all rows, or one for each; made by `jax.random.key` or `jax.random.PRNGKey`. Noise is drawn by
        threefry2x32, with a key made of this one where it is another generator's.
      max_new_tokens: O, at least 1.
      lengths: tokens of each prompt, from 1 to T, fewer than the model's context; None means T.
      temperature: of all rows, or of each; 0 takes the likeliest token.
      processors: change logits further, such as `TopK(k=…)` with a setting for each row. They are applied in this
        order, the temperature before the first that truncates (`TopK`, `TopP`, `MinP`), or last.
      stop_tokens: ids that end a row.

    Raises:
      TypeError: tokens, lengths or the key have another type than they must.
      ValueError: shapes do not belong together, `max_new_tokens` is less than 1, or prompts of T tokens leave no room
        in the model's context.
    """
    check(tokens, lengths, max_new_tokens, key)
    batch, width = tokens.shape
    bound = model_def.bind(jax.lax.stop_gradient(params))
    config = getattr(bound, "config", None)
    longest = getattr(model_def, "max_positions", None if config is None else config.max_positions)
    if longest is not None and lengths is None and width >= longest:
        raise ValueError(f"prompts of {width} tokens leave no room in the model's context of {longest}")
    keys = _row_keys(key, batch)
    lengths = jnp.full((batch,), width, jnp.int32) if lengths is None else lengths.astype(jnp.int32)
    warmth = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), (batch,))
    roles = {"target": jax.lax.stop_gradient(params)}
    strategy = Autoregressive(target=model_def, sampled=True, log_probs=0, as_chosen=True)
    shared = Shared(
        processors=_with_temperature(processors, warmth),
        stop_tokens=jnp.asarray(tuple(stop_tokens) or (-1,), jnp.int32),
    )
    chunk = min(width, PROMPT_CHUNK, longest_block(bound) or PROMPT_CHUNK)
    rows = init_rows(
        strategy,
        roles,
        shared,
        keys,
        slots=round_up(width + max_new_tokens - 1, SLOT_MULTIPLE),
        output=max_new_tokens,
        block=chunk,
        log_probs=0,
    )
    reach = None if config is None else reach_of_text(config, prompt=lengths, new=max_new_tokens - 1)
    none = jnp.zeros_like(lengths)
    limit = none + max_new_tokens if longest is None else jnp.clip(longest - lengths, 1, max_new_tokens)
    state = DecodeState(rows=open_turn(rows, limit=limit, stop=none, reach=reach), shared=shared)

    def read(state: DecodeState, piece: tuple[Array, Array]) -> tuple[DecodeState, None]:
        return prefill(strategy, roles, state, Chunk(tokens=piece[0], valid=piece[1]))[0], None

    state, _ = jax.lax.scan(read, state, _pieces(tokens, lengths, chunk))
    state = decode(strategy, roles, start(strategy, roles, state), jnp.int32(max_new_tokens))
    rows = state.rows
    valid = _before(rows.output_length, max_new_tokens)
    return Rollout(
        tokens=jnp.where(valid, rows.output, 0),
        log_probs=jnp.where(valid, rows.log_probs.chosen, 0.0),
        length=rows.output_length,
        stopped=rows.finish == STOP_TOKEN,
    )


def _with_temperature(
    processors: Sequence[LogitsProcessor], temperature: Float[Array, "B"]
) -> tuple[LogitsProcessor, ...]:
    """Returns the processors in the order of `processors_for`, with the temperature among them.

    Behind what forbids tokens: at 0 it leaves one token alone, which must be allowed.
    """
    truncating = (i for i, processor in enumerate(processors) if isinstance(processor, TopK | TopP | MinP))
    at = next(truncating, len(processors))
    return (*processors[:at], Temperature(temperature=temperature), *processors[at:])


def _pieces(
    tokens: Int[Array, "B T"], lengths: Int[Array, "B"], chunk: int
) -> tuple[Int[Array, "pieces B chunk"], Bool[Array, "pieces B chunk"]]:
    """Returns the prompts cut into pieces of equal width, and which of their entries are no padding."""
    batch, width = tokens.shape
    count = -(-width // chunk)
    padded = jnp.pad(tokens.astype(jnp.int32), ((0, 0), (0, count * chunk - width)))
    valid = _before(lengths, count * chunk)
    by_piece = (batch, count, chunk)
    return padded.reshape(by_piece).swapaxes(0, 1), valid.reshape(by_piece).swapaxes(0, 1)


def _before(length: Int[Array, "B"], width: int) -> Bool[Array, "B width"]:
    """Marks the first `length` entries of each row."""
    return jnp.arange(width, dtype=jnp.int32)[None] < length[:, None]


def check(tokens: Array, lengths: Array | None, max_new_tokens: int, key: Array) -> None:
    """Refuses arguments of `rollout` that do not belong together.

    Raises:
      TypeError: tokens, lengths or the key have another type than they must.
      ValueError: shapes do not belong together, or `max_new_tokens` is less than 1.
    """
    for name, array, axes in (("tokens", tokens, 2), ("lengths", lengths, 1)):
        if array is None:
            continue
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise TypeError(f"{name} must be integers; got {array.dtype}")
        if array.ndim != axes or not array.size:
            raise ValueError(f"{name} must have {axes} axes and some rows; got shape {array.shape}")
    batch = tokens.shape[0]
    if lengths is not None and len(lengths) != batch:
        raise ValueError(f"lengths must be one for each of {batch} prompts; got {len(lengths)}")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1; got {max_new_tokens}")
    old = key.dtype == jnp.uint32
    if not (old or jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise TypeError(f"key must be made by jax.random.key or jax.random.PRNGKey; got {key.dtype}")
    # A key of PRNGKey is an array of words.
    if (key.shape[:-1] if old else key.shape) not in ((), (batch,)):
        raise ValueError(f"key must be one key, or one for each of {batch} rows; got shape {key.shape}")


def _row_keys(key: Array, batch: int) -> Key[Array, "B"]:
    """Returns a key of threefry for each row: other generators draw a whole batch from its first row's key."""
    words = key if key.dtype == jnp.uint32 else jax.random.key_data(key)
    key = jax.random.wrap_key_data(words[..., :2], impl="threefry2x32")
    fold_in = jax.random.fold_in if key.ndim == 0 else jax.vmap(jax.random.fold_in)
    for word in range(2, words.shape[-1]):
        key = fold_in(key, words[..., word])
    return jax.random.split(key, batch) if key.ndim == 0 else key
