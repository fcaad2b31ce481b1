"""What a call of `generate` asks for, checked before anything is allocated."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_smash.automaton import TokenAutomaton, json_schema_automaton, regex_automaton, stop_automaton
from jax_smash.loading import Model
from jax_smash.sampling import SamplingOptions
from jax_smash.shapes import bucket

Prompt = str | Sequence[int] | Sequence[dict[str, str]]
"""Text, tokens, or chat messages (`{"role": …, "content": …}`)."""


@dataclasses.dataclass(frozen=True)
class Request:
    """Prompts and options that fit the model and each other.

    Attributes:
      prompts: as given, one an entry.
      tokens: of each prompt.
      sampling, seeds: one a prompt.
      slots: capacity of the cache a row.
      stop: strings that end a text, and `stops`, their automaton.
      grammar: the automaton that output is held to.
    """

    prompts: list[Any]
    tokens: list[list[int]]
    sampling: list[SamplingOptions]
    seeds: list[int]
    slots: int
    stop: tuple[str, ...]
    stops: TokenAutomaton | None
    grammar: TokenAutomaton | None


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Any]:
    """One prompt or several: a text, tokens and a list of messages are each one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    items = list(prompts)
    return [items] if items and isinstance(items[0], (int, np.integer, dict)) else items


def _encode(model: Model, prompt: Any, chat: bool) -> list[int]:
    if isinstance(prompt, str):
        if not prompt:
            return []
        return model.encode_chat([{"role": "user", "content": prompt}]) if chat else model.encode(prompt)
    if prompt and isinstance(prompt[0], dict):
        return model.encode_chat(prompt)
    return [int(token) for token in prompt]


def check_counts(**counts: int) -> None:
    """Raises a `ValueError` that names the first count below 1."""
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}")


def make_request(
    model: Model,
    prompts: Prompt | Sequence[Prompt],
    *,
    max_new_tokens: int,
    sampling: SamplingOptions | Sequence[SamplingOptions],
    stop: str | Sequence[str],
    json_schema: str | dict[str, Any] | None,
    regex: str | None,
    seed: int | Sequence[int],
    chat: bool,
    slots: int | None,
) -> Request:
    """Checks prompts and options, and makes the tables that they need. Arguments are those of `generate`.

    Raises:
      ValueError: something is out of range, or does not fit the model.
    """
    prompts = _as_list(prompts)
    if not prompts:
        raise ValueError("prompts must hold at least one prompt; got none")
    count = len(prompts)
    options = [sampling] * count if isinstance(sampling, SamplingOptions) else list(sampling)
    seeds = [seed] * count if isinstance(seed, int) else list(seed)
    for name, items in (("sampling", options), ("seed", seeds)):
        if len(items) != count:
            raise ValueError(f"{name} must be one for all or one a prompt ({count}); got {len(items)}")
    tokens = [_encode(model, prompt, chat) for prompt in prompts]
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
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
    """Returns the cache's capacity, once every prompt is known to be in range and to fit it."""
    vocab_size = model.vocab_size
    longest = model.config.max_positions if model.config else None
    room = min(x for x in (slots, longest, 2**30) if x is not None)
    for i, prompt in enumerate(tokens):
        if not prompt:
            raise ValueError(f"prompt {i} is empty")
        if not all(0 <= t < vocab_size for t in prompt):
            raise ValueError(f"prompt {i} has tokens outside 0 … {vocab_size - 1}")
        if len(prompt) + max_new_tokens > room:
            what = "the cache" if room == slots else "the model's context"
            raise ValueError(
                f"prompt {i} has {len(prompt)} tokens and may get {max_new_tokens} new ones: "
                f"{len(prompt) + max_new_tokens} are more than {what} of {room}"
            )
    return slots or min(bucket(max(map(len, tokens)) + max_new_tokens, least=64), room)


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
