"""Prompts in, completions out."""

from collections.abc import Callable, Sequence
from typing import Any

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
from jax_smash.serve.request import Prompts, Seeds, check_counts, check_told, make_request
from jax_smash.serve.session import Session
from jax_smash.serve.turn import Completion, Turn
from jax_smash.shapes import rows_for

QUIET_STEPS = 64
"""Steps per call of the loop where the text is not streamed."""

STREAM_STEPS = 8
"""Steps per call where the text is streamed."""


def generate(
    model: Model,
    prompts: Prompts,
    *,
    method: str = "ar",
    draft: DraftOptions = DraftOptions(),  # noqa: B008 - frozen
    smash: SmashOptions = SmashOptions(),  # noqa: B008 - frozen
    max_new_tokens: int = 128,
    sampling: SamplingOptions | Sequence[SamplingOptions] = SamplingOptions(),  # noqa: B008 - frozen
    stop: str | Sequence[str] | None = (),
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
    decide on the text too, and so may other rows and earlier batches, which a drafter learned from. A policy of sparse
    reading that `pays_from` some length goes by the longest row of a batch.

    Args:
      model: from `load`.
      prompts: one prompt, or several: texts, lists of tokens, arrays of tokens `[T]`, chats; an array `[B, T]` holds
        one a row.
      method: a name of `jax_smash.methods.METHODS`.
      draft: options of methods that draft.
      smash: options of HAMburger.
      max_new_tokens: at most, a continuation.
      sampling: how tokens are chosen, for all prompts or one a prompt.
      stop: strings that end a continuation; they and what follows are cut. None is none.
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
      ValueError: an option or prompt is out of range, or does not fit; raised before anything is decoded. Or the
        model's logits are not numbers, which shows while decoding.
      TypeError: a prompt or a seed is neither text nor whole numbers, or an option is of another type; raised before
        anything is decoded.
      OSError: a file that an option names cannot be read or made; likewise, but for a disk that is full at the end.
      MemoryError: the rows do not fit the device.
    """
    check_method(method)
    check_draft(method, draft)
    check_smash(method, smash)
    check_counts(max_new_tokens=max_new_tokens, num_samples=num_samples, batch_size=batch_size, steps=steps)
    check_counts(0, log_probs=log_probs, prompt_log_probs=prompt_log_probs)
    check_told(model.vocab_size, log_probs=log_probs, prompt_log_probs=prompt_log_probs)
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

    def decoded(batch: range, memory: dict[str, Any]) -> tuple[list[Completion], dict[str, Any]]:
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
        turn = Turn(model, session, request, batch, tree=draft.tree, on_text=on_text, on_tokens=on_tokens, skip=skip)
        turn.read()
        return turn.decode(steps or (STREAM_STEPS if on_text else QUIET_STEPS))

    memory: dict[str, Any] = made.memory
    completions: list[Completion] = []
    for first in range(skip // num_samples // size * size, len(request.tokens), size):
        batch = range(first, min(first + size, len(request.tokens)))
        # What a drafter learned from one batch helps with the next. Nothing else is kept of a session when the next one
        # is made: two caches would take twice the memory.
        made_now, memory = decoded(batch, memory)
        made_now = made_now[max(0, skip - first * num_samples) :]
        completions += made_now
        if on_completion is not None:
            for completion in made_now:
                on_completion(completion)
    save_memory(model, draft, memory)
    return completions
