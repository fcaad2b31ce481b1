"""Prompts in, completions out."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jax_smash.automaton import (
    StreamDecoder,
    TokenAutomaton,
    json_schema_automaton,
    regex_automaton,
    stop_automaton,
)
from jax_smash.decode.programs import PROGRAMS
from jax_smash.decode.state import FINISH_REASONS
from jax_smash.loading import Model
from jax_smash.methods import strategy_for
from jax_smash.sampling import SamplingOptions
from jax_smash.session import Session, TokenLogProb
from jax_smash.shapes import bucket

Prompt = str | Sequence[int] | Sequence[dict[str, str]]
"""Text, tokens, or chat messages (`{"role": …, "content": …}`)."""

QUIET_STEPS = 64
"""Steps a call of the loop where nobody reads along."""


@dataclasses.dataclass(frozen=True)
class Completion:
    """One continuation of one prompt, and what it cost.

    Attributes:
      prompt: as given.
      text: the continuation, without special tokens, cut before a stop string; "" where there is no tokenizer.
      token_ids: every emitted token, a stop token included.
      prompt_tokens, new_tokens: how many.
      finish_reason: `length`, `stop_token` or `stop_string`.
      target_forwards: decode forwards while the row ran; prefill is left out.
      mean_accepted_tokens: (new_tokens − 1) / target_forwards; None where no decode forward was made.
      tokens_per_second: of this row while its batch decoded, compilation and prefill left out; None for one token.
      time_to_first_token_s: from the start of prefill to the first token on the host, compilation left out.
      sample: number of the continuation among those of its prompt.
      log_probs, prompt_log_probs: a record a token; None unless asked for.
    """

    prompt: Any
    text: str
    token_ids: list[int]
    prompt_tokens: int
    new_tokens: int
    finish_reason: str
    target_forwards: int
    mean_accepted_tokens: float | None
    tokens_per_second: float | None
    time_to_first_token_s: float
    sample: int = 0
    log_probs: list[TokenLogProb] | None = None
    prompt_log_probs: list[TokenLogProb] | None = None


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Everything `generate` has checked before anything is allocated."""

    prompts: list[Any]
    tokens: list[list[int]]
    sampling: list[SamplingOptions]
    seeds: list[int]
    slots: int
    stops: TokenAutomaton | None
    grammar: TokenAutomaton | None


def generate(
    model: Model,
    prompts: Prompt | Sequence[Prompt],
    *,
    method: str = "ar",
    max_new_tokens: int = 128,
    sampling: SamplingOptions | Sequence[SamplingOptions] = SamplingOptions(),  # noqa: B008 - frozen
    stop: str | Sequence[str] = (),
    json_schema: str | dict[str, Any] | None = None,
    regex: str | None = None,
    log_probs: int | None = None,
    prompt_log_probs: int | None = None,
    num_samples: int = 1,
    seed: int | Sequence[int] = 0,
    batch_size: int = 8,
    chat: bool = False,
    slots: int | None = None,
    on_text: Callable[[int, str], None] | None = None,
    on_tokens: Callable[[int], None] | None = None,
    on_completion: Callable[[Completion], None] | None = None,
    steps: int | None = None,
) -> list[Completion]:
    """Continues prompts, a batch at a time.

    A row's text depends on its prompt, its options and its seed alone: not on its batch, and not on whether it is
    streamed.

    Args:
      model: from `load`.
      prompts: one prompt, or several.
      method: a name of `jax_smash.methods.METHODS`.
      max_new_tokens: at most, a continuation.
      sampling: how tokens are chosen, for all prompts or one a prompt.
      stop: strings that end a continuation; they and what follows are cut.
      json_schema: the continuation is held to this schema.
      regex: the continuation is held to this regular expression, whole.
      log_probs: record this many likeliest tokens beside each emitted one.
      prompt_log_probs: likewise for prompt tokens.
      num_samples: continuations of each prompt; they share its prefill.
      seed: of all prompts, or one a prompt.
      batch_size: prompts that decode together.
      chat: text prompts are a user's message, put into the model's chat template.
      slots: capacity of the cache a row; None makes it fit.
      on_text: called with a completion's number and its next piece of text, while it is made.
      on_tokens: called with the number of new tokens, while they are made.
      on_completion: called with each completion, in order, when its batch has ended.
      steps: steps a call of the loop; None chooses.

    Returns:
      Completions in the order of the prompts, the samples of a prompt side by side.

    Raises:
      ValueError: an option or prompt is out of range, or does not fit; raised before anything is decoded.
    """
    strategy_class = strategy_for(method)
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    plan = _plan(
        model,
        _as_list(prompts),
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop=stops,
        json_schema=json_schema,
        regex=regex,
        num_samples=num_samples,
        seed=seed,
        batch_size=batch_size,
        chat=chat,
        slots=slots,
        log_probs=(log_probs, prompt_log_probs),
    )
    strategy = strategy_class(
        target=model.definition, sampled=any(o.sampled for o in plan.sampling), log_probs=log_probs
    )
    size = min(batch_size, len(plan.tokens))
    completions: list[Completion] = []
    for first in range(0, len(plan.tokens), size):
        batch = range(first, min(first + size, len(plan.tokens)))
        # The last batch is filled up with rows that sit out, so that it needs no program of its own.
        fill = size - len(batch)
        session = Session(
            model,
            strategy,
            slots=plan.slots,
            max_new_tokens=max_new_tokens,
            sampling=[plan.sampling[i] for i in batch] + [SamplingOptions()] * fill,
            seeds=[plan.seeds[i] for i in batch] + [0] * fill,
            samples=num_samples,
            among=plan.sampling,
            stops=plan.stops,
            grammar=plan.grammar,
            log_probs=log_probs,
            prompt_log_probs=prompt_log_probs,
        )
        turn = _Turn(model, session, stops, on_text, on_tokens, len(completions), len(batch) * num_samples)
        turn.run([plan.tokens[i] for i in batch] + [[]] * fill, steps or (8 if on_text else QUIET_STEPS))
        for row in range(len(batch) * num_samples):
            i = first + row // num_samples
            completions.append(turn.completion(row, plan.prompts[i], len(plan.tokens[i]), row % num_samples))
            if on_completion is not None:
                on_completion(completions[-1])
    return completions


class _Turn:
    """One batch from prompt to end: runs the session, hands out text, keeps the times."""

    def __init__(
        self,
        model: Model,
        session: Session,
        stops: Sequence[str],
        on_text: Callable[[int, str], None] | None,
        on_tokens: Callable[[int], None] | None,
        first: int,
        rows: int,
    ):
        self.session, self.first, self.rows = session, first, rows
        self.on_text, self.on_tokens = on_text, on_tokens
        decoding = range(rows) if model.tokenizer is not None else ()
        self.decoders = [StreamDecoder(model.token_bytes, stops) for _ in decoding]
        self.texts = [""] * rows
        self.shown = [0] * rows
        self.first_token_s = self.decode_s = 0.0

    def run(self, prompts: list[list[int]], steps: int) -> None:
        """Reads the prompts and decodes until every row has ended."""
        began, compiled = time.perf_counter(), PROGRAMS.seconds
        self.session.read(prompts)
        self._show()
        self.first_token_s = time.perf_counter() - began - (PROGRAMS.seconds - compiled)
        running = True
        while running:
            began, compiled = time.perf_counter(), PROGRAMS.seconds
            running = self.session.run(steps)
            self.decode_s += time.perf_counter() - began - (PROGRAMS.seconds - compiled)
            self._show()
        for row, decoder in enumerate(self.decoders):
            self._say(row, decoder.finish())

    def completion(self, row: int, prompt: Any, prompt_tokens: int, sample: int) -> Completion:
        """Returns what became of a row."""
        finish, forwards = jax.device_get((self.session.state.rows.finish, self.session.state.rows.forwards))
        tokens, log_probs = self.session.outputs()[row], self.session.log_probs()
        prompt_log_probs = self.session.prompt_log_probs
        after_first = len(tokens) - 1
        return Completion(
            prompt=prompt,
            text=self.texts[row],
            token_ids=tokens,
            prompt_tokens=prompt_tokens,
            new_tokens=len(tokens),
            finish_reason=FINISH_REASONS[finish[row]],
            target_forwards=int(forwards[row]),
            mean_accepted_tokens=after_first / int(forwards[row]) if forwards[row] else None,
            tokens_per_second=after_first / self.decode_s if after_first else None,
            time_to_first_token_s=self.first_token_s,
            sample=sample,
            log_probs=None if log_probs is None else log_probs[row],
            prompt_log_probs=None if prompt_log_probs is None else prompt_log_probs[row],
        )

    def _show(self) -> None:
        outputs = self.session.outputs()[: self.rows]
        if self.on_tokens is not None:
            self.on_tokens(sum(map(len, outputs)) - sum(self.shown))
        for row, decoder in enumerate(self.decoders):
            self._say(row, decoder.feed(outputs[row][self.shown[row] :]))
        self.shown = [len(tokens) for tokens in outputs]

    def _say(self, row: int, text: str) -> None:
        self.texts[row] += text
        if text and self.on_text is not None:
            self.on_text(self.first + row, text)


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


def _plan(
    model: Model,
    prompts: list[Any],
    *,
    max_new_tokens: int,
    sampling: SamplingOptions | Sequence[SamplingOptions],
    stop: tuple[str, ...],
    json_schema: str | dict[str, Any] | None,
    regex: str | None,
    num_samples: int,
    seed: int | Sequence[int],
    batch_size: int,
    chat: bool,
    slots: int | None,
    log_probs: tuple[int | None, int | None],
) -> _Plan:
    """Checks every option and prompt, and makes the tables that they need."""
    for name, value, least in (
        ("max_new_tokens", max_new_tokens, 1),
        ("num_samples", num_samples, 1),
        ("batch_size", batch_size, 1),
        ("log_probs", log_probs[0] or 0, 0),
        ("prompt_log_probs", log_probs[1] or 0, 0),
    ):
        if value < least:
            raise ValueError(f"{name} must be at least {least}; got {value}")
    if not prompts:
        raise ValueError("prompts must hold at least one prompt; got none")
    count = len(prompts)
    options = [sampling] * count if isinstance(sampling, SamplingOptions) else list(sampling)
    seeds = [seed] * count if isinstance(seed, int) else list(seed)
    for name, items in (("sampling", options), ("seed", seeds)):
        if len(items) != count:
            raise ValueError(f"{name} must be one for all or one a prompt ({count}); got {len(items)}")
    tokens = [_encode(model, prompt, chat) for prompt in prompts]
    return _Plan(
        prompts=prompts,
        tokens=tokens,
        sampling=options,
        seeds=seeds,
        slots=_slots(model, tokens, max_new_tokens, slots),
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
