"""Text decoded batch by batch under a given method, with all that two decoders are compared by."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jax_smash.finish import REASONS
from jax_smash.loading import Model
from jax_smash.methods import Method
from jax_smash.pytree import replace
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.generation import QUIET_STEPS
from jax_smash.serve.request import Request
from jax_smash.serve.session import Session, TokenLogProb
from jax_smash.sharding import on_host

Processors = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Decoded:
    """What became of one prompt.

    Attributes:
      tokens: that were emitted.
      finish: why they end.
      forwards: of the target, prefill left out.
      log_probs: a record a token; None unless asked for.
    """

    tokens: list[int]
    finish: str
    forwards: int
    log_probs: list[TokenLogProb] | None


def decode_all(
    model: Model,
    method: Method,
    request: Request,
    *,
    batch_size: int,
    max_new_tokens: int,
    log_probs: int | None = None,
    change: Callable[[Processors], Processors] | None = None,
    until: Callable[[Sequence[Decoded]], bool] | None = None,
) -> list[Decoded]:
    """Returns what `generate` makes of a request, under a method that need not have a name.

    Args:
      model: the model.
      method: made for it.
      request: prompts and options.
      batch_size: prompts that decode together; the last batch is filled up with rows that sit out.
      max_new_tokens: at most, a prompt.
      log_probs: likeliest tokens that the method records.
      change: is given the processors of a batch and returns those to be used.
      until: is given what was decoded after each batch; True ends it there.
    """
    decoded: list[Decoded] = []
    memory = None
    for first in range(0, len(request.tokens), batch_size):
        batch = slice(first, first + batch_size)
        prompts = request.tokens[batch]
        fill = batch_size - len(prompts)
        session = Session(
            model,
            method,
            slots=request.slots,
            max_new_tokens=max_new_tokens,
            sampling=request.sampling[batch] + [SamplingOptions()] * fill,
            seeds=request.seeds[batch] + [0] * fill,
            among=request.sampling,
            stops=request.stops,
            grammar=request.grammar,
            log_probs=log_probs,
            memory=memory,
        )
        if change is not None:
            shared = session.state.shared
            session.state = replace(session.state, shared=replace(shared, processors=change(shared.processors)))
        session.read(prompts + [[]] * fill)
        while session.run(QUIET_STEPS):
            pass
        memory = session.state.shared.memory
        decoded += _outcomes(session, len(prompts))
        if until is not None and until(decoded):
            break
    return decoded


def _outcomes(session: Session, count: int) -> list[Decoded]:
    finish, forwards = on_host((session.state.rows.finish, session.state.rows.forwards))
    outputs, records = session.outputs(), session.log_probs()
    return [
        Decoded(
            tokens=outputs[row],
            finish=REASONS[finish[row]],
            forwards=int(forwards[row]),
            log_probs=None if records is None else records[row],
        )
        for row in range(count)
    ]
