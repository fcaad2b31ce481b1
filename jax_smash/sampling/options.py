"""Sampling options, one set for each row."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jax_smash.automaton import TokenAutomaton, join
from jax_smash.protocols import LogitsProcessor
from jax_smash.sampling.penalties import Constrained, LogitBias, MinNewTokens, OutputPenalty, RepetitionPenalty
from jax_smash.sampling.truncation import MinP, Temperature, TopK, TopP
from jax_smash.shapes import bucket

LEAST_TEMPERATURE = 1e-4
"""Below this, logits / temperature leave the useful range of float32. 0 stands for the likeliest token."""


@dataclasses.dataclass(frozen=True)
class SamplingOptions:
    """How the tokens of one row are chosen. `processors_for` says in which order the options apply.

    Attributes:
      temperature: 0 takes the likeliest token; otherwise at least 0.0001.
      top_k: keep the k likeliest tokens; 0 keeps all.
      top_p: keep the fewest likeliest tokens whose probabilities add up to this; over 0, and 1 keeps all.
      min_p: keep tokens with at least this fraction of the probability of the likeliest one; from 0 (keeps all) to 1.
      repetition_penalty: for tokens in prompt or output, divides positive logits and multiplies negative ones; over 0.
      presence_penalty: subtracted from the logit of each token in the output; from −2 to 2.
      frequency_penalty: subtracted from the logit of a token for each time it is in the output; from −2 to 2.
      logit_bias: maps token ids to what is added to their logits; from −100 to 100 each.
      min_new_tokens: a stop token cannot be emitted before this many tokens.

    Raises:
      TypeError: an option is of the wrong type.
      ValueError: an option is out of range.
    """

    temperature: float | int = 0.0
    top_k: int = 0
    top_p: float | int = 1.0
    min_p: float | int = 0.0
    repetition_penalty: float | int = 1.0
    presence_penalty: float | int = 0.0
    frequency_penalty: float | int = 0.0
    logit_bias: Mapping[int, float | int] = dataclasses.field(default_factory=dict)
    min_new_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("top_k", "min_new_tokens"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), Integral):
                raise TypeError(f"{name} must be a whole number; got {getattr(self, name)!r}")
            _check(name, getattr(self, name), 0 <= getattr(self, name) < 2**31, "from 0 to 2147483647")
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            _check_number(name, getattr(self, name))
        _check(
            "temperature",
            self.temperature,
            self.temperature == 0 or self.temperature >= LEAST_TEMPERATURE,
            f"0 or at least {LEAST_TEMPERATURE}",
        )
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "over 0 and at most 1")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "from 0 to 1")
        _check("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0, "over 0")
        for name in ("presence_penalty", "frequency_penalty"):
            _check(name, getattr(self, name), -2 <= getattr(self, name) <= 2, "from -2 to 2")
        if not isinstance(self.logit_bias, Mapping):
            raise TypeError(f"logit_bias must map token ids to numbers; got {self.logit_bias!r}")
        for token, bias in self.logit_bias.items():
            if isinstance(token, bool) or not isinstance(token, Integral) or token < 0:
                raise ValueError(f"logit_bias must have token ids, at least 0, as keys; got {token!r}")
            _check_number(f"logit_bias of token {token}", bias)
            _check(f"logit_bias of token {token}", bias, -100 <= bias <= 100, "from -100 to 100")

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn at random."""
        return self.temperature > 0

    @property
    def changes_greedy(self) -> bool:
        """Whether logits are changed in a way that matters without sampling too."""
        penalties = (self.presence_penalty, self.frequency_penalty, self.min_new_tokens)
        return bool(self.logit_bias) or self.repetition_penalty != 1 or any(penalties)


def processors_for(
    options: Sequence[SamplingOptions],
    *,
    stop_tokens: Sequence[int],
    vocab_size: int,
    grammar: TokenAutomaton | Sequence[TokenAutomaton | None] | None = None,
    among: Sequence[SamplingOptions] = (),
    sampled: bool = False,
) -> tuple[LogitsProcessor, ...]:
    """Makes the processors of a batch, in the order in which they are applied.

    The order is logit bias, repetition penalty, presence and frequency penalties, minimum of new tokens, grammar,
    temperature, top-k, top-p, min-p. Where all rows are greedy and use no option, there are none. Otherwise there are
    all of them, the last four only where a row samples or noise is added. Settings are arrays, and what no row uses is
    skipped while decoding, so another option compiles nothing.

    Args:
      options: of each row.
      stop_tokens: ids that end a row.
      vocab_size: V.
      grammar: one automaton that constrains all rows, or one for each row, None where a row is free.
      among: options of other batches of the same run, which are to share this one's compiled program.
      sampled: tokens are chosen with noise even if no row samples, as by a method made with `sampled=True`.

    Raises:
      ValueError: a biased or stop token is not in the vocabulary, or a grammar is over another vocabulary.
    """
    every = [*options, *among]
    for token in {t for o in every for t in o.logit_bias}.union(stop_tokens):
        if not 0 <= token < vocab_size:
            raise ValueError(f"a biased or stop token must be below the vocabulary's {vocab_size}; got {token}")
    grammars = [grammar] * len(options) if grammar is None or isinstance(grammar, TokenAutomaton) else list(grammar)
    if len(grammars) != len(options):
        raise ValueError(f"grammar must be one for all or one a row ({len(options)}); got {len(grammars)}")
    constrained = any(g is not None for g in grammars)
    sampled = sampled or any(o.sampled for o in every)
    if not (constrained or sampled or any(o.changes_greedy for o in every)):
        return ()
    processors = _by_text(options, stop_tokens, width=max(len(o.logit_bias) for o in every))
    if constrained:
        automaton, start = join(grammars)
        if automaton.vocab_size != vocab_size:
            raise ValueError(f"a grammar must be over {vocab_size} tokens; got {automaton.vocab_size}")
        processors.append(Constrained(automaton=automaton, start=start))
    return (*processors, *(_truncation(options) if sampled else ()))


def _by_text(options: Sequence[SamplingOptions], stop_tokens: Sequence[int], *, width: int) -> list[LogitsProcessor]:
    """Makes the processors that depend on the text so far, with room for `width` biased tokens a row."""
    presence, frequency = ([getattr(o, f"{x}_penalty") for o in options] for x in ("presence", "frequency"))
    stops = np.tile(np.asarray([list(stop_tokens) or [-1]], np.int32), (len(options), 1))
    return [
        _logit_bias(options, bucket(width)),
        RepetitionPenalty(penalty=_floats([o.repetition_penalty for o in options])),
        OutputPenalty(presence=_floats(presence), frequency=_floats(frequency)),
        MinNewTokens(count=_ints([o.min_new_tokens for o in options]), stop_tokens=jnp.asarray(stops)),
    ]


def _truncation(options: Sequence[SamplingOptions]) -> list[LogitsProcessor]:
    """Makes the processors that matter only for sampled rows."""
    return [
        Temperature(temperature=_floats([o.temperature for o in options])),
        TopK(k=_ints([o.top_k if o.sampled else 0 for o in options])),
        TopP(p=_floats([o.top_p if o.sampled else 1 for o in options])),
        MinP(p=_floats([o.min_p if o.sampled else 0 for o in options])),
    ]


def _logit_bias(options: Sequence[SamplingOptions], width: int) -> LogitBias:
    tokens = np.full((len(options), width), -1, np.int32)
    bias = np.zeros((len(options), width), np.float32)
    for row, option in enumerate(options):
        count = len(option.logit_bias)
        tokens[row, :count] = list(option.logit_bias)
        bias[row, :count] = list(option.logit_bias.values())
    return LogitBias(tokens=jnp.asarray(tokens), bias=jnp.asarray(bias))


def _floats(values: Sequence[float | int]) -> Array:
    return jnp.asarray(values, jnp.float32)


def _ints(values: Sequence[int]) -> Array:
    return jnp.asarray(values, jnp.int32)


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number; got {value!r}")
    _check(name, value, math.isfinite(value), "finite")


def _check(name: str, value: object, fits: bool, range_: str) -> None:
    if not fits:
        raise ValueError(f"{name} must be {range_}; got {value!r}")
