"""What the plain base finds in texts that others wrote: errors by position, with intervals over texts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from eval.exact.rescoring import Rescored
from eval.scores.intervals import Interval, ratio_bootstrap
from eval.scores.smashing import Compression
from eval.tasks.variety import distinct_share
from jax_smash.serve.turn import Completion

FIRST = 32
"""Tokens of the first bucket of positions; each one after ends at twice the position."""

MOST_NATS = 10.0
"""Where a token's distance from the best one is cut: a single one of 40 nats would hide all others."""

FIGURES = ("tokens", "error", "low", "high", "nats_below_best")
COLUMNS = (
    "mode",
    "confidence",
    "texts",
    *FIGURES,
    "growth",
    "growth_low",
    "growth_high",
    "distinct_4grams",
    "mean_accepted_tokens",
    "output_compression",
    "cache_compression",
)
BY_POSITION = ("mode", "confidence", "first", "last", "texts", "texts_with_errors", *FIGURES, "nats_low", "nats_high")


@dataclasses.dataclass(frozen=True)
class Reread:
    """One text and what the plain base says of each token.

    Attributes:
      tokens: that were written.
      wrong: whether the base would have chosen another, rounding aside.
      nats: how far the token's log-probability lies below the best one's, from 0 to 10; 0 where it is not wrong.
      forwards: of the base while it was written, the prefill left out.
      decoded: tokens that they gave.
      slots: that the tokens took; 0 where each has its own.
      fused: tokens that are in those slots.
    """

    tokens: list[int]
    wrong: Bool[np.ndarray, "T"]
    nats: Float[np.ndarray, "T"]
    forwards: int = 0
    decoded: float = 0
    slots: int = 0
    fused: int = 0

    @classmethod
    def of(cls, completion: Completion, said: Rescored) -> Reread:
        """Returns a completion that was read again."""
        wrong = ~np.asarray(said.explained)
        nats = np.where(wrong, np.clip(np.asarray(said.gap), 0, MOST_NATS), 0)
        smashed = completion.smashed
        return cls(
            tokens=completion.token_ids,
            wrong=wrong,
            nats=nats.astype(np.float64),
            forwards=completion.target_forwards,
            decoded=(completion.mean_accepted_tokens or 0) * completion.target_forwards,
            slots=smashed.slots if smashed else 0,
            fused=smashed.tokens if smashed else 0,
        )


def buckets(new_tokens: int) -> list[range]:
    """Returns the positions of an output in ranges that grow: 0–31, 32–63, 64–127, 128–255 and so on."""
    edges = [0]
    while edges[-1] < new_tokens:
        edges.append(min(max(FIRST, 2 * edges[-1]), new_tokens))
    return [range(a, b) for a, b in itertools.pairwise(edges)]


def row(
    mode: str, confidence: float | None, texts: Sequence[Reread], compression: Compression, *, new_tokens: int
) -> dict[str, Any]:
    """Returns the figures of texts that were written in one way.

    `error` is the share of tokens that are wrong and `growth` that of the last bucket of positions less that of the
    first, over texts that reach it; each has an interval.

    Args:
      mode: that they were written in.
      confidence: with which; None where the mode knows none.
      texts: at least one.
      compression: of all of them.
      new_tokens: that a text has at most.
    """
    parts = buckets(new_tokens)
    forwards = sum(text.forwards for text in texts)
    varied = [distinct_share(text.tokens) for text in texts]
    fused = [text for text in texts if text.slots]
    return {
        "mode": mode,
        "confidence": confidence,
        **_figures(texts, range(new_tokens)),
        **_growth(texts, parts[0], parts[-1]),
        "distinct_4grams": sum(varied) / len(varied),
        "distinct_4grams_interval": _told(ratio_bootstrap(varied, [1] * len(varied))),
        "mean_accepted_tokens": sum(text.decoded for text in texts) / forwards if forwards else None,
        **compression.figures(),
        "output_compression_interval": _told(ratio_bootstrap([t.fused for t in fused], [t.slots for t in fused])),
        "by_position": [{"first": p.start, "last": p.stop - 1, **_figures(texts, p)} for p in parts],
    }


def _figures(texts: Sequence[Reread], positions: range) -> dict[str, Any]:
    """Returns how many tokens at some positions are wrong, and by how many nats."""
    wrong = [text.wrong[positions.start : positions.stop] for text in texts]
    nats = [text.nats[positions.start : positions.stop] for text in texts]
    counts = [len(part) for part in wrong if len(part)]
    errors = [int(part.sum()) for part in wrong if len(part)]
    short = [float(part.sum()) for part in nats if len(part)]
    total = sum(counts)
    error, below = _interval(errors, counts), _interval(short, counts)
    return {
        "texts": len(counts),
        "texts_with_errors": sum(e > 0 for e in errors),
        "tokens": total,
        "error": sum(errors) / total if total else None,
        "low": error and error.low,
        "high": error and error.high,
        "nats_below_best": sum(short) / total if total else None,
        "nats_low": below and below.low,
        "nats_high": below and below.high,
    }


def _growth(texts: Sequence[Reread], first: range, last: range) -> dict[str, Any]:
    """Returns by how much more of the last tokens than of the first are wrong, each text compared with itself."""
    long = [text for text in texts if len(text.wrong) > last.start] if last != first else []
    apart = [float(t.wrong[last.start : last.stop].mean() - t.wrong[: first.stop].mean()) for t in long]
    bounds = _interval(apart, [1] * len(apart))
    return {
        "growth": sum(apart) / len(apart) if apart else None,
        "growth_low": bounds and bounds.low,
        "growth_high": bounds and bounds.high,
    }


def _interval(above: Sequence[float], below: Sequence[int]) -> Interval | None:
    """Returns the interval of a ratio of sums over texts; None where all are 0, of which a bootstrap has no doubt."""
    return ratio_bootstrap(above, below) if any(above) else None


def _told(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else dataclasses.asdict(interval)
