"""What one task found: a score with its interval, and the score of each example."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from eval.scores.engine import Engine
from eval.scores.intervals import Interval, interval_of_mean, wilson
from eval.scores.paired import Compare, difference_of_means, difference_of_shares
from eval.scores.smashing import Compression


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One metric of one set of examples under one method.

    Attributes:
      task, metric: what was measured.
      settings: what the score depends on beside model and method.
      n: examples.
      score: of all of them.
      interval: 95%, over examples; None where there are too few.
      examples: an entry each, with at least `example` and `score`; the same examples in the same order under every
        method, so that methods can be compared pair by pair.
      compare: the difference of such examples from a baseline's.
      more: further figures of the row.
      compression: of the texts that were decoded for it.
    """

    task: str
    metric: str
    settings: dict[str, Any]
    n: int
    score: float
    interval: Interval | None
    examples: list[dict[str, Any]]
    compare: Compare
    more: dict[str, Any] = dataclasses.field(default_factory=dict)
    compression: Compression = dataclasses.field(default_factory=Compression)


class TaskSet(Protocol):
    """A set of examples that is measured as a whole."""

    @property
    def task(self) -> str:
        """Its name."""
        ...

    def measure(self, engine: Engine) -> list[Outcome]:
        """Asks the model; returns an outcome a metric."""
        ...


def accuracy(
    task: str, metric: str, settings: dict[str, Any], examples: Sequence[dict[str, Any]], **more: Any
) -> Outcome:
    """Returns the share of examples whose `score` is 1."""
    right = sum(example["score"] for example in examples)
    return Outcome(
        task=task,
        metric=metric,
        settings=settings,
        n=len(examples),
        score=right / len(examples),
        interval=wilson(right, len(examples)),
        examples=list(examples),
        compare=difference_of_shares,
        more=more,
    )


def mean_score(
    task: str, metric: str, settings: dict[str, Any], examples: Sequence[dict[str, Any]], **more: Any
) -> Outcome:
    """Returns the mean of the examples' `score`, each from 0 to 1."""
    scores = [example["score"] for example in examples]
    return Outcome(
        task=task,
        metric=metric,
        settings=settings,
        n=len(scores),
        score=sum(scores) / len(scores),
        interval=interval_of_mean(scores),
        examples=list(examples),
        compare=difference_of_means,
        more=more,
    )
