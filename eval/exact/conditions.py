"""Under which options exactness is checked: prompts with all processors or none, greedy or sampled."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Literal

from jax_smash.loading import Model
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.request import Request, make_request

LOG_PROBS = 3
"""Likeliest tokens recorded where all processors are on."""

STOP = (" was", " that he")
"""Stop strings that end a share of texts, one of them of several tokens."""

REGEX = "( ?[A-Za-z']{1,14}[,.;:!?]?)+"
"""A grammar of words of at most 14 letters, so that a token may be forbidden for what stands before it."""


@dataclasses.dataclass(frozen=True)
class Condition:
    """How a batch is decoded.

    Attributes:
      batch_size: prompts that decode together.
      processors: `all` turns on every processor, stop strings, a grammar and log-probabilities.
      choice: of tokens.
    """

    batch_size: int
    processors: Literal["none", "all"]
    choice: Literal["greedy", "sampled"]

    @property
    def log_probs(self) -> int | None:
        """Likeliest tokens to record; None for no record."""
        return LOG_PROBS if self.processors == "all" else None

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn."""
        return self.choice == "sampled"


def request_for(
    condition: Condition,
    model: Model,
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int,
    seed: int,
    stop: Sequence[str] = STOP,
    regex: str = REGEX,
) -> Request:
    """Returns prompts with a condition's options; a prompt's seed is `seed` plus its number.

    Raises:
      ValueError: a prompt does not fit the model, the grammar is none, or the model has no tokenizer to read stop
        strings and grammar with.
    """
    everything = condition.processors == "all"
    bias = _bias(prompts) if everything else {}
    return make_request(
        model,
        list(prompts),
        max_new_tokens=max_new_tokens,
        sampling=[_options(condition, i, bias, max_new_tokens) for i in range(len(prompts))],
        stop=tuple(stop) if everything else (),
        json_schema=None,
        regex=regex if everything else None,
        seed=[seed + i for i in range(len(prompts))],
        chat=False,
        slots=None,
    )


def _options(condition: Condition, number: int, bias: dict[int, float], max_new_tokens: int) -> SamplingOptions:
    """Returns a prompt's options; those of neighbours differ, for each row must keep to its own."""
    if condition.processors == "none":
        return SamplingOptions(temperature=1.0 if condition.sampled else 0.0)
    step = number % 3
    drawn = {
        "temperature": 0.7 + 0.3 * step,
        "top_k": 20 + 10 * step,
        "top_p": 0.99 - 0.04 * step,
        "min_p": 0.01 * step,
    }
    return SamplingOptions(
        **(drawn if condition.sampled else {}),  # type: ignore[arg-type]
        repetition_penalty=1.1 + 0.1 * step,
        presence_penalty=0.4 - 0.2 * step,
        frequency_penalty=0.1 + 0.2 * step,
        logit_bias=bias,
        min_new_tokens=max_new_tokens // 4,
    )


def _bias(prompts: Sequence[list[int]]) -> dict[int, float]:
    """Returns a bias for the commonest token of the prompts and one against the next."""
    common = collections.Counter(t for prompt in prompts for t in prompt).most_common(2)
    return {token: bias for (token, _), bias in zip(common, (1.0, -1.0), strict=False)}
