"""How far a score lies above a baseline's on the same examples, with a 95% interval of the difference.

Two methods on the same examples err on mostly the same ones, so their difference is known far better than either score.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from eval.scores.intervals import Interval, interval_of_mean_difference, ratio_bootstrap, tango

Examples = Sequence[dict[str, Any]]
"""An entry an example, each with a `score`; two sets that are compared have the same examples in the same order."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A score less a baseline's.

    Attributes:
      value: below 0 where the baseline's is larger.
      unit: of the value and the bounds.
      interval: 95%, over examples; None where there are too few.
      higher, lower: examples whose own score is above or below the baseline's.
    """

    value: float
    unit: str
    interval: Interval | None
    higher: int
    lower: int


Compare = Callable[[Examples, Examples], Difference]
"""Returns the difference of examples from a baseline's."""


def difference_of_shares(examples: Examples, baseline: Examples) -> Difference:
    """Returns the difference of two shares of examples whose `score` is 1."""
    gained, lost = _counts(examples, baseline)
    count = len(examples)
    return Difference((gained - lost) / count, "share", tango(gained, lost, count), gained, lost)


def difference_of_means(examples: Examples, baseline: Examples) -> Difference:
    """Returns the difference of two means of `score`, each from 0 to 1."""
    apart = [e["score"] - b["score"] for e, b in zip(examples, baseline, strict=True)]
    interval = interval_of_mean_difference(apart)
    return Difference(sum(apart) / len(apart), "mean", interval, *_counts(examples, baseline))


def difference_of_nats(examples: Examples, baseline: Examples) -> Difference:
    """Returns the difference in nats a token; the two perplexities are apart by the factor e to it.

    Documents are drawn again whole: each has `nats` and, the same in both, `tokens`.
    """
    return _difference_of_nats(examples, baseline, "token")


def difference_of_nats_a_word(examples: Examples, baseline: Examples) -> Difference:
    """Returns the difference in nats a word, likewise: each document has `nats` and `words`."""
    return _difference_of_nats(examples, baseline, "word")


COMPARES: dict[str, Compare] = {
    "shares": difference_of_shares,
    "means": difference_of_means,
    "nats": difference_of_nats,
    "nats_a_word": difference_of_nats_a_word,
}
"""The differences by name, for files of outcomes."""


def _difference_of_nats(examples: Examples, baseline: Examples, unit: str) -> Difference:
    apart = [e["nats"] - b["nats"] for e, b in zip(examples, baseline, strict=True)]
    sizes = [e[f"{unit}s"] for e in examples]
    return Difference(
        sum(apart) / sum(sizes), f"nats per {unit}", ratio_bootstrap(apart, sizes), *_counts(examples, baseline)
    )


def _counts(examples: Examples, baseline: Examples) -> tuple[int, int]:
    pairs = [(e["score"], b["score"]) for e, b in zip(examples, baseline, strict=True)]
    return sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
