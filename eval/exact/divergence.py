"""Where drafted text leaves plain decoding's, and whether rounding explains it."""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval.exact.decoded import Decoded
from eval.exact.rescoring import Rescored, Text, rescore
from jax_smash.loading import Model
from jax_smash.models.rope import reach_of_text
from jax_smash.protocols import used_by
from jax_smash.sampling import processors_for, row_keys
from jax_smash.serve.request import Request
from jax_smash.shapes import bucket
from jax_smash.sharding import on_host

ROUNDING = {"float32": 1e-5, "bfloat16": 2.0**-7}
"""Share of the largest logit's magnitude that rounding may move a choice by.

In bfloat16 it is the format's step at that magnitude: 8 bits of significand tell two logits apart no better, whatever
order a forward adds in.
"""

RESCORED_ROWS = 8
"""Texts that are read again together."""


@dataclasses.dataclass(frozen=True)
class Divergence:
    """The first token of a text that is not plain decoding's.

    Attributes:
      prompt: its number.
      position: index among the new tokens.
      token, plain: emitted, and by plain decoding; −1 where a text had ended.
      gap: by how much the emitted token's processed logit, with its place's noise, exceeds the other's, in units of the
        largest logit's magnitude; None where a text had ended or one of the two is not allowed there.
      near_tie: whether rounding explains it.
    """

    prompt: int
    position: int
    token: int
    plain: int
    gap: float | None
    near_tie: bool


class Rescorer:
    """Reads texts again under the options that they were decoded with.

    A text that equals what it is compared with is read once, however often it is asked about: what the forward says of
    it depends on nothing else.
    """

    def __init__(self, model: Model, request: Request, *, dtype: str, max_new_tokens: int):
        """Takes the options; computes nothing.

        Args:
          model: the model.
          request: prompts and options of all texts.
          dtype: that the model computes in.
          max_new_tokens: that a text has at most.
        """
        self.model, self.request = model, request
        self.tolerance = ROUNDING[dtype]
        self.sampled = any(o.sampled for o in request.sampling)
        self._new, self._output = max_new_tokens, bucket(max_new_tokens)
        self._width = bucket(max(map(len, request.tokens)) + max_new_tokens)
        self._known: dict[tuple[int, tuple[int, ...]], Rescored] = {}

    def rescore(
        self, decoded: Sequence[Decoded], others: Sequence[Decoded], on_text: Callable[[], None] = lambda: None
    ) -> list[Rescored]:
        """Returns what one plain forward says of each text, arrays of a value a token.

        Args:
          decoded: a text a prompt of the request, or of its first prompts.
          others: what they are compared with.
          on_text: called for each text when it was read.
        """
        # What is said of another's token, where two texts differ, is of that one comparison.
        kept = {i: (i, tuple(text.tokens)) for i, text in enumerate(decoded) if text.tokens == others[i].tokens}
        said = {i: self._known[key] for i, key in kept.items() if key in self._known}
        for _ in said:
            on_text()
        left = [i for i in range(len(decoded)) if i not in said]
        for first in range(0, len(left), RESCORED_ROWS):
            numbers = left[first : first + RESCORED_ROWS]
            said |= dict(zip(numbers, self._read(numbers, decoded, others), strict=True))
            for _ in numbers:
                on_text()
        self._known |= {key: said[i] for i, key in kept.items()}
        return [said[i] for i in range(len(decoded))]

    def _read(self, numbers: Sequence[int], decoded: Sequence[Decoded], others: Sequence[Decoded]) -> list[Rescored]:
        # The last rows come again where a batch is not full, so that it needs no program of its own.
        rows = [*numbers, *[numbers[-1]] * (RESCORED_ROWS - len(numbers))]
        prompts, outputs = ([texts[i] for i in rows] for texts in (self.request.tokens, [d.tokens for d in decoded]))
        config, lengths = self.model.config, jnp.asarray([len(p) for p in prompts], jnp.int32)
        text = Text(
            tokens=_padded([p + o for p, o in zip(prompts, outputs, strict=True)], self._width),
            prompt_length=lengths,
            output=_padded(outputs, self._output),
            output_length=jnp.asarray([len(o) for o in outputs], jnp.int32),
            other=_padded([others[i].tokens for i in rows], self._output),
            reach=None if config is None else reach_of_text(config, prompt=lengths, new=self._new - 1),
        )
        processors = processors_for(
            [self.request.sampling[i] for i in rows],
            stop_tokens=self.model.stop_tokens,
            vocab_size=self.model.vocab_size,
            grammar=self.request.grammar,
            among=self.request.sampling,
        )
        # Of what cuts nothing off no edge is to be moved.
        processors = tuple(p for p in processors if (used := used_by(p)) is None or used.any())
        said = rescore(
            self.model.definition,
            self.model.params,
            processors,
            text,
            row_keys([self.request.seeds[i] for i in rows]),
            jnp.float32(self.tolerance),
            sampled=self.sampled,
        )
        host = on_host(said)
        return [jax.tree.map(lambda x, row=row: x[row, : len(outputs[row])], host) for row in range(len(numbers))]


def divergences(decoded: Sequence[Decoded], plain: Sequence[Decoded], said: Sequence[Rescored]) -> list[Divergence]:
    """Returns where texts first differ from plain decoding's.

    Args:
      decoded, plain: a text a prompt, under the same options and seeds.
      said: of each of `decoded`, with plain decoding's tokens as the others.
    """
    found = []
    for number, (ours, theirs, row) in enumerate(zip(decoded, plain, said, strict=True)):
        pairs = itertools.zip_longest(ours.tokens, theirs.tokens, fillvalue=-1)
        place = next(((i, a, b) for i, (a, b) in enumerate(pairs) if a != b), None)
        if place is None:
            continue
        i, token, other = place
        ended = -1 in (token, other)
        gap = np.inf if ended else float(row.other_gap[i] / row.scale[i])
        tie = not ended and bool(row.explained[i])
        found.append(Divergence(number, i, token, other, gap if np.isfinite(gap) else None, tie))
    return found


def summary(
    decoded: Sequence[Decoded], plain: Sequence[Decoded], said: Sequence[Rescored], *, tolerance: float
) -> dict[str, Any]:
    """Returns the figures of a comparison, the list of its divergences among them.

    `unexplained` counts tokens that rounding does not explain, wherever they stand; `worst_gap` is the largest gap from
    the best token, in units of the largest logit's magnitude. Log-probabilities differ where that of a token before the
    divergence is off plain decoding's by more than twice what rounding moves a logit by: token and sum each move. What
    is no number differs, and is left out of `worst_gap` and `worst_log_prob_error`.
    """
    listed = divergences(decoded, plain, said)
    diverged = {d.prompt for d in listed}
    errors = [_log_prob_errors(ours, theirs, row) for ours, theirs, row in zip(decoded, plain, said, strict=True)]
    tokens, forwards = sum(len(d.tokens) for d in decoded), sum(d.forwards for d in decoded)
    return {
        "prompts": len(decoded),
        "tokens": tokens,
        "distinct_tokens": len({t for d in decoded for t in d.tokens}),
        "divergences": len(listed),
        "beyond_near_ties": sum(not d.near_tie for d in listed),
        "unexplained": int(sum((~row.explained).sum() for row in said)),
        "worst_gap": _worst([row.gap / row.scale for row in said]),
        "log_probs_differing": int(sum((~(error <= 2 * tolerance)).sum() for error in errors)),
        "worst_log_prob_error": _worst(errors),
        "finish_differing": sum(
            a.finish != b.finish for i, (a, b) in enumerate(zip(decoded, plain, strict=True)) if i not in diverged
        ),
        "forwards": forwards,
        "mean_accepted_tokens": (tokens - len(decoded)) / forwards if forwards else None,
        "finish": dict(collections.Counter(d.finish for d in decoded)),
        "listed": [dataclasses.asdict(d) for d in listed],
    }


def _log_prob_errors(ours: Decoded, theirs: Decoded, said: Rescored) -> np.ndarray:
    """Returns the relative errors of recorded log-probabilities, against plain decoding's and the forward's own.

    The likeliest tokens are compared by their values: two of one value may change places.
    """
    if ours.log_probs is None or theirs.log_probs is None:
        return np.zeros(0)
    errors = []
    for i, (a, b) in enumerate(zip(ours.log_probs, theirs.log_probs, strict=False)):
        if a.token != b.token:
            break
        values = [(a.log_prob, b.log_prob), (a.log_prob, float(said.log_prob[i]))]
        values += [(x, y) for (_, x), (_, y) in zip(a.top, b.top, strict=True)]
        # What is banned has −inf in both: no difference.
        apart = [0.0 if x == y else abs(x - y) for x, y in values]
        errors.append(np.max(apart) / float(said.log_prob_scale[i]))  # Of NaN and a number it is NaN.
    return np.asarray(errors)


def _worst(values: Sequence[np.ndarray]) -> float:
    """Returns the largest finite value; 0 where there is none."""
    return float(max((x for row in values for x in row if np.isfinite(x)), default=0.0))


def _padded(rows: Sequence[Sequence[int]], width: int) -> jnp.ndarray:
    padded = np.zeros((len(rows), width), np.int32)
    for row, tokens in enumerate(rows):
        padded[row, : len(tokens)] = tokens
    return jnp.asarray(padded)
