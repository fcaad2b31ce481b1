"""Prompts in, completions out."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax_smash.automaton import StreamDecoder
from jax_smash.decode.draft_report import Drafted, drafted_rows
from jax_smash.decode.groups import Smashed, smashed_rows
from jax_smash.decode.programs import PROGRAMS
from jax_smash.finish import REASONS
from jax_smash.loading import Model
from jax_smash.methods import (
    DraftOptions,
    SmashOptions,
    check_draft,
    check_method,
    check_smash,
    make_method,
    save_memory,
)
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.request import Prompts, Request, Seeds, check_counts, make_request
from jax_smash.serve.session import Session, TokenLogProb
from jax_smash.shapes import rows_for
from jax_smash.sharding import on_host

QUIET_STEPS = 64
"""Steps per call of the loop where the text is not streamed."""

STREAM_STEPS = 8
"""Steps per call where the text is streamed."""


@dataclasses.dataclass(frozen=True)
class Completion:
    """One continuation of one prompt, and what it cost.

    Attributes:
      prompt: the prompt as given.
      text: the continuation without special tokens, cut before a stop string; "" where there is no tokenizer.
      token_ids: every emitted token, including a stop token.
      prompt_tokens, new_tokens: numbers of tokens.
      finish_reason: `length`, `stop_token` or `stop_string`.
      target_forwards: decode forwards while the row ran, without the prefill.
      mean_accepted_tokens: (new_tokens − 1) / target_forwards; None where no decode forward was made.
      tokens_per_second: speed of this row while its batch decoded, without compilation and prefill; None for one token.
      time_to_first_token_s: from the start of the prefill to the first token on the host, without compilation.
      sample: index of the continuation among those of its prompt.
      log_probs, prompt_log_probs: one record per token; None unless asked for.
      drafted: how the drafts of the row fared; None in plain decoding.
      smashed: the slots that its tokens took; None where each token has a slot of its own.
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
    drafted: Drafted | None = None
    smashed: Smashed | None = None


def generate(
    model: Model,
    prompts: Prompts,
    *,
    method: str = "ar",
    draft: DraftOptions = DraftOptions(),  # noqa: B008 - frozen
    smash: SmashOptions = SmashOptions(),  # noqa: B008 - frozen
    max_new_tokens: int = 128,
    sampling: SamplingOptions | Sequence[SamplingOptions] = SamplingOptions(),  # noqa: B008 - frozen
    stop: str | Sequence[str] = (),
    json_schema: str | dict[str, Any] | None = None,
    regex: str | None = None,
    log_probs: int | None = None,
    prompt_log_probs: int | None = None,
    num_samples: int = 1,
    seed: Seeds = 0,
    batch_size: int = 8,
    chat: bool = False,
    slots: int | None = None,
    skip: int = 0,
    on_text: Callable[[int, str], None] | None = None,
    on_tokens: Callable[[int], None] | None = None,
    on_completion: Callable[[Completion], None] | None = None,
    steps: int | None = None,
) -> list[Completion]:
    """Continues prompts, a batch at a time.

    The text of a row depends only on its prompt, its options and its seed. It does not depend on the batch or on
    streaming. For HAMburger's `blind` and `checked` modes this holds where `least_rows` is 1. Otherwise the length of a
    row's groups depends on the other rows of the batch. Sampled drafts that are verified otherwise than by `coupling`
    decide on the text too, and so may other rows and earlier batches, which a drafter learned from.

    Args:
      model: from `load`.
      prompts: one prompt, or several: texts, lists of tokens, arrays of tokens `[T]`, chats; an array `[B, T]` holds
        one a row.
      method: a name of `jax_smash.methods.METHODS`.
      draft: options of methods that draft.
      smash: options of HAMburger.
      max_new_tokens: at most, a continuation.
      sampling: how tokens are chosen, for all prompts or one a prompt.
      stop: strings that end a continuation; they and what follows are cut.
      json_schema: the continuation is held to this schema.
      regex: the continuation is held to this regular expression, whole.
      log_probs: record this many likeliest tokens beside each emitted one.
      prompt_log_probs: likewise for prompt tokens.
      num_samples: continuations of each prompt; they share its prefill.
      seed: of all prompts, or one a prompt.
      batch_size: prompts that decode together at most. Fewer of them are filled up to 1, 2, 4, 8 … rows, those without
        a prompt sitting out, so that few programs are compiled; samples of a prompt are as many as asked for.
      chat: text prompts are a user's message, put into the model's chat template.
      slots: capacity of the cache a row; None makes it fit.
      skip: completions that an earlier call made, counted from the first. They are neither made nor returned, and the
        others are decoded in the batches that they would have been in; only what a drafter learns begins anew.
      on_text: called with a completion's number and its next piece of text, while it is made.
      on_tokens: called with the number of new tokens, while they are made.
      on_completion: called with each completion, in order, when its batch has ended.
      steps: steps a call of the loop; None chooses.

    Returns:
      Completions in the order of the prompts; the samples of one prompt are consecutive.

    Raises:
      ValueError: an option or prompt is out of range, or does not fit; raised before anything is decoded.
      TypeError: a prompt or a seed is neither text nor whole numbers; likewise.
      OSError: a file that an option names cannot be read or made; likewise, but for a disk that is full at the end.
    """
    check_method(method)
    check_draft(method, draft)
    check_smash(method, smash)
    check_counts(max_new_tokens=max_new_tokens, num_samples=num_samples, batch_size=batch_size)
    request = make_request(
        model,
        prompts,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop=stop,
        json_schema=json_schema,
        regex=regex,
        seed=seed,
        chat=chat,
        slots=slots,
    )
    total = len(request.tokens) * num_samples
    if not 0 <= skip <= total:
        raise ValueError(f"skip must be from 0 to {total}, the number of completions; got {skip}")
    if skip == total:
        return []
    size = rows_for(len(request.tokens), most=batch_size)
    made = make_method(
        model,
        method,
        sampled=any(o.sampled for o in request.sampling),
        log_probs=log_probs,
        draft=draft,
        smash=smash,
        batch=size * num_samples,
        slots=request.slots,
    )
    room = slots or model.max_positions or made.nodes
    if made.nodes > room:
        raise ValueError(f"the tree must fit the cache's {room} slots; it has {made.nodes} nodes, the root included")

    def turn(batch: range, memory: dict[str, Any]) -> _Turn:
        # Filled up with rows that sit out, so that a batch that is not full needs no program of its own.
        fill = size - len(batch)
        session = Session(
            model,
            made,
            slots=request.slots,
            max_new_tokens=max_new_tokens,
            sampling=[request.sampling[i] for i in batch] + [SamplingOptions()] * fill,
            seeds=[request.seeds[i] for i in batch] + [0] * fill,
            samples=num_samples,
            among=request.sampling,
            stops=request.stops,
            grammar=request.grammar,
            log_probs=log_probs,
            prompt_log_probs=prompt_log_probs,
            memory=memory,
        )
        return _Turn(model, session, request, batch, draft.tree, on_text, on_tokens, skip)

    memory: dict[str, Any] = made.memory
    completions: list[Completion] = []
    for first in range(skip // num_samples // size * size, len(request.tokens), size):
        batch = range(first, min(first + size, len(request.tokens)))
        # What a drafter learned from one batch helps with the next. Nothing else is kept of a session when the next one
        # is made: two caches would take twice the memory.
        made_now, memory = turn(batch, memory).decoded(steps or (STREAM_STEPS if on_text else QUIET_STEPS))
        made_now = made_now[max(0, skip - first * num_samples) :]
        completions += made_now
        if on_completion is not None:
            for completion in made_now:
                on_completion(completion)
    save_memory(model, draft, memory)
    return completions


class _Turn:
    """One batch from its prompts to its end: runs the session, passes on the text, measures the times."""

    def __init__(
        self,
        model: Model,
        session: Session,
        request: Request,
        batch: range,
        tree: str,
        on_text: Callable[[int, str], None] | None,
        on_tokens: Callable[[int], None] | None,
        skip: int,
    ):
        self.skip = skip
        self.session, self.request, self.batch, self.tree = session, request, batch, tree
        self.on_text, self.on_tokens = on_text, on_tokens
        self.rows = len(batch) * session.samples
        decoding = range(self.rows) if model.tokenizer is not None else ()
        self.decoders = [StreamDecoder(model.token_bytes, request.stop) for _ in decoding]
        self.texts = [""] * self.rows
        self.shown = [0] * self.rows
        self.started: list[int] = []
        self.first_token_s = self.decode_s = 0.0

    def run(self, steps: int) -> None:
        """Reads the prompts and decodes, `steps` steps a call, until every row has ended."""
        prompts = [self.request.tokens[i] for i in self.batch]
        began, compiled = time.perf_counter(), PROGRAMS.seconds
        self.session.read(prompts + [[]] * (self.session.prompts - len(prompts)))
        self._show()
        # A group that comes with the prompt counts as not decoded.
        self.started = self.shown
        self.first_token_s = time.perf_counter() - began - (PROGRAMS.seconds - compiled)
        running = True
        while running:
            began, compiled = time.perf_counter(), PROGRAMS.seconds
            running = self.session.run(steps)
            self.decode_s += time.perf_counter() - began - (PROGRAMS.seconds - compiled)
            self._show()
        for row, decoder in enumerate(self.decoders):
            self._say(row, decoder.finish())

    def decoded(self, steps: int) -> tuple[list[Completion], Any]:
        """Runs the session to its end. Returns what became of each row, and what the rows shared."""
        self.run(steps)
        return list(self.completions()), self.session.state.shared.memory

    def completions(self) -> Iterator[Completion]:
        """Yields the completion of each row."""
        rows = self.session.state.rows
        finish, forwards = on_host((rows.finish, rows.forwards))
        outputs, log_probs = self.session.outputs(), self.session.log_probs()
        prompt_log_probs = self.session.prompt_log_probs
        method, sized = self.session.method, self.session.sized
        drafted = drafted_rows(
            self.session.state, tree=self.tree, source=method.source, curve=method.curve, sized=sized
        )
        smashed = smashed_rows(self.session.state)
        for row in range(self.rows):
            prompt, sample = divmod(row, self.session.samples)
            decoded = len(outputs[row]) - self.started[row]
            yield Completion(
                prompt=self.request.prompts[self.batch[prompt]],
                text=self.texts[row],
                token_ids=outputs[row],
                prompt_tokens=len(self.request.tokens[self.batch[prompt]]),
                new_tokens=len(outputs[row]),
                finish_reason=REASONS[finish[row]],
                target_forwards=int(forwards[row]),
                mean_accepted_tokens=decoded / int(forwards[row]) if forwards[row] else None,
                tokens_per_second=decoded / self.decode_s if decoded else None,
                time_to_first_token_s=self.first_token_s,
                sample=sample,
                log_probs=None if log_probs is None else log_probs[row],
                prompt_log_probs=None if prompt_log_probs is None else prompt_log_probs[row],
                drafted=None if drafted is None else drafted[row],
                smashed=None if smashed is None else smashed[row],
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
        number = self.batch.start * self.session.samples + row
        if text and self.on_text is not None and number >= self.skip:
            self.on_text(number, text)
