"""The request of a call of `generate`, checked before anything is allocated."""

import dataclasses
import operator
from collections.abc import Iterable, Mapping, Sequence
from numbers import Number
from typing import Any

import jax
import numpy as np

from jax_smash.automaton import TokenAutomaton, json_schema_automaton, regex_automaton, stop_automaton
from jax_smash.loading import Model
from jax_smash.sampling import SamplingOptions, check_seeds
from jax_smash.serve.prompts import check_messages, checked_text
from jax_smash.shapes import bucket

Tokens = Sequence[int | np.integer | jax.Array] | np.ndarray | jax.Array
"""Token ids: a list, or an array of integers."""

Prompt = str | Tokens | Sequence[dict[str, str]]
"""Text, tokens, or chat messages (`{"role": …, "content": …}`)."""

Prompts = Prompt | Sequence[Prompt]
"""One prompt or several; an array `[B, T]` holds one a row."""

Seeds = int | np.integer | Sequence[int | np.integer | jax.Array] | np.ndarray | jax.Array
"""One seed for all, or one a prompt."""


@dataclasses.dataclass(frozen=True)
class Request:
    """Prompts and options that fit the model and each other.

    Attributes:
      prompts: the prompts as given, one per entry.
      tokens: the tokens of each prompt.
      sampling, seeds: one for each prompt.
      slots: cache capacity of each row.
      stop: strings that end a text.
      stops: the automaton of these strings.
      grammar: the automaton that constrains the output.
    """

    prompts: list[Any]
    tokens: list[list[int]]
    sampling: list[SamplingOptions]
    seeds: list[int]
    slots: int
    stop: tuple[str, ...]
    stops: TokenAutomaton | None
    grammar: TokenAutomaton | None


def as_prompts(prompts: Any) -> list[Any]:
    """Returns one prompt or several as a list of prompts.

    A text, a list of tokens, an array `[T]` and a list of messages are each one prompt; an array `[B, T]` is one a row.

    Raises:
      TypeError: it is neither, or an array of another rank.
    """
    if isinstance(prompts, str):
        return [prompts]
    none = isinstance(prompts, Mapping | bytes | bytearray) or not isinstance(prompts, Iterable)
    if none and not _is_array(prompts):
        raise TypeError(f"prompts must be texts, tokens or lists of chat messages; got {_kind(prompts)}")
    if _is_array(prompts):
        array = np.asarray(prompts)
        if array.ndim not in (1, 2):
            raise TypeError(f"an array of prompts must be tokens [T] or [B, T]; got shape {list(array.shape)}")
        return [array] if array.ndim == 1 else list(array)
    items = list(prompts)
    return [items] if items and (_is_number(items[0]) or isinstance(items[0], Mapping)) else items


def as_tokens(prompt: Any, what: str = "prompt") -> list[int]:
    """Returns the tokens of a list or an array `[T]` as Python integers.

    Args:
      prompt: the tokens.
      what: names them in errors.

    Raises:
      TypeError: something in it is no whole number, or it is an array of another rank.
    """
    if _is_array(prompt):
        array = np.asarray(prompt)
        if array.ndim != 1:
            raise TypeError(f"{what} must be tokens [T]; got an array of shape {list(array.shape)}")
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise TypeError(f"{what} must be tokens (integers); got an array of {array.dtype}")
        return array.tolist()
    if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Sequence):
        raise TypeError(f"{what} must be text, tokens or chat messages; got {_kind(prompt)}")
    return [whole_number(token, f"{what}, entry {i}: a token") for i, token in enumerate(prompt)]


def as_seeds(seed: Any, count: int) -> list[int]:
    """Returns a seed for each of `count` prompts, from one for all or one a prompt.

    Raises:
      TypeError: a seed is no whole number.
      ValueError: a seed is out of range, or there are too few or too many.
    """
    one = not seed.shape if _is_array(seed) else not isinstance(seed, Sequence)
    seeds = [whole_number(s, "seed") for s in ([seed] * count if one else list(seed))]
    if len(seeds) != count:
        raise ValueError(f"seed must be one for all or one a prompt ({count}); got {len(seeds)}")
    check_seeds(seeds)
    return seeds


def whole_number(value: Any, what: str) -> int:
    """Returns a Python, numpy or jax integer as a Python integer.

    Raises:
      TypeError: it is none.
    """
    try:
        if isinstance(value, bool) or (_is_array(value) and value.dtype == np.bool_):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be a whole number; got {_kind(value)}") from None


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _is_number(value: Any) -> bool:
    """Returns whether something stands where a token does, be it one or not."""
    return isinstance(value, Number) or (_is_array(value) and not value.shape)


def _kind(value: Any) -> str:
    """Says what a value is, in few characters."""
    if _is_array(value):
        shown = "" if value.shape else f"{' '.join(str(value).split())}, "
        return f"{shown}an array of {value.dtype} {list(value.shape)}"
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:40]}… ({type(value).__name__})"


def _encode(model: Model, prompt: Any, chat: bool, what: str) -> list[int]:
    messages: Any = None
    if isinstance(prompt, str):
        if not prompt:
            return []
        if not chat:
            try:
                return model.encode(checked_text(prompt))
            except ValueError as error:
                raise ValueError(f"{what}: {error}") from error
        messages = [{"role": "user", "content": prompt}]
    elif not _is_array(prompt) and isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
        messages = prompt
    if messages is None:
        return as_tokens(prompt, what)
    try:
        check_messages(messages)
        return model.encode_chat(messages)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def as_options(sampling: Any, count: int) -> list[SamplingOptions]:
    """Returns the options of so many prompts: one for all, or one each.

    Raises:
      TypeError: something else is given.
      ValueError: there are more or fewer of them.
    """
    options = [sampling] * count if isinstance(sampling, SamplingOptions) else list(sampling)
    if other := [option for option in options if not isinstance(option, SamplingOptions)]:
        raise TypeError(f"sampling must be SamplingOptions; got {other[0]!r}")
    if len(options) != count:
        raise ValueError(f"sampling must be one for all or one a prompt ({count}); got {len(options)}")
    return options


def as_stops(stop: Any) -> tuple[str, ...]:
    """Returns stop strings, of which one may stand alone; None is none.

    Raises:
      TypeError: something else is given.
      ValueError: one is no Unicode text.
    """
    stops = (stop,) if isinstance(stop, str) else () if stop is None else tuple(stop)
    if other := [text for text in stops if not isinstance(text, str)]:
        raise TypeError(f"stop must be strings; got {other[0]!r}")
    return tuple(map(checked_text, stops))


def check_counts(least: int = 1, /, **counts: int | None) -> None:
    """Raises a `ValueError` that names the first count below the least, if there is one; None is none."""
    for name, value in counts.items():
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}; got {value}")


def check_told(vocab_size: int, **tops: int | None) -> None:
    """Raises a `ValueError` that names the first number of likeliest tokens that a vocabulary does not have."""
    for name, value in tops.items():
        if value is not None and value > vocab_size:
            raise ValueError(f"{name} must be at most the {vocab_size} tokens of the vocabulary; got {value}")


def make_request(
    model: Model,
    prompts: Any,
    *,
    max_new_tokens: int,
    sampling: SamplingOptions | Sequence[SamplingOptions],
    stop: str | Sequence[str] | None,
    json_schema: str | dict[str, Any] | None,
    regex: str | None,
    seed: Any,
    chat: bool,
    slots: int | None,
) -> Request:
    """Checks prompts and options and makes the tables that they need. The arguments are those of `generate`.

    Raises:
      TypeError: a prompt or a seed is neither text nor whole numbers.
      ValueError: a prompt or an option is out of range or does not fit the model.
    """
    prompts = as_prompts(prompts)
    if not prompts:
        raise ValueError("prompts must hold at least one prompt; got none")
    count = len(prompts)
    options = as_options(sampling, count)
    seeds = as_seeds(seed, count)
    tokens = [_encode(model, prompt, chat, f"prompt {i}") for i, prompt in enumerate(prompts)]
    stop = as_stops(stop)
    return Request(
        prompts=prompts,
        tokens=tokens,
        sampling=options,
        seeds=seeds,
        slots=_slots(model, tokens, max_new_tokens, slots),
        stop=stop,
        stops=_stops(model, stop),
        grammar=_grammar(model, json_schema, regex),
    )


def _slots(model: Model, tokens: list[list[int]], max_new_tokens: int, slots: int | None) -> int:
    """Returns the capacity of the cache after checking that every prompt is in range and fits it."""
    vocab_size = model.vocab_size
    longest = model.max_positions
    room = min(x for x in (slots, longest, 2**30) if x is not None)
    for i, prompt in enumerate(tokens):
        if not prompt:
            raise ValueError(f"prompt {i} is empty")
        outside = next((t for t in prompt if not 0 <= t < vocab_size), None)
        if outside is not None:
            raise ValueError(f"prompt {i} has tokens outside 0 … {vocab_size - 1}: {outside}")
        if len(prompt) + max_new_tokens > room:
            what = "the cache" if room == slots else "the model's context"
            raise ValueError(
                f"prompt {i} has {len(prompt)} tokens and may get {max_new_tokens} new ones: "
                f"{len(prompt) + max_new_tokens} are more than {what} of {room}"
            )
    # No larger than the context, though more slots are asked for.
    return room if slots else min(bucket(max(map(len, tokens)) + max_new_tokens, least=64), room)


def _stops(model: Model, stop: tuple[str, ...]) -> TokenAutomaton | None:
    if not stop:
        return None
    if model.tokenizer is None:
        raise ValueError(f"stop strings need a tokenizer; {model.name} has none")
    return stop_automaton(stop, model.token_bytes)


def _grammar(model: Model, json_schema: str | dict[str, Any] | None, regex: str | None) -> TokenAutomaton | None:
    if json_schema is None and regex is None:
        return None
    if json_schema is not None and regex is not None:
        raise ValueError("json_schema and regex exclude each other; got both")
    if model.tokenizer is None:
        raise ValueError(f"a grammar needs a tokenizer; {model.name} has none")
    if regex is not None:
        return regex_automaton(regex, model.token_bytes, stop_tokens=model.stop_tokens)
    assert json_schema is not None
    return json_schema_automaton(json_schema, model.token_bytes, stop_tokens=model.stop_tokens)
