"""All questions of a run taken together: one score, and the slots that their answers took."""

import dataclasses
import functools
import operator
from collections.abc import Sequence

from eval.scores.smashing import Compression
from eval.tasks.outcome import Outcome, accuracy

ALL = "all tasks"
"""Name of the task that is all of them."""

RIGHT_OR_WRONG = ("accuracy", "acc")
"""Metrics that tell of each example whether it was answered right; one at most of a set of examples."""


def all_tasks(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Returns the share of all examples that were answered right, each example counted alike.

    Args:
      outcomes: of sets of examples under one method.

    Returns:
      One outcome; none where fewer than two sets are answered right or wrong.
    """
    counted = [outcome for outcome in outcomes if outcome.metric in RIGHT_OR_WRONG]
    if len(counted) < 2:
        return []
    total = accuracy(
        ALL,
        "accuracy",
        {"tasks": list(dict.fromkeys(outcome.task for outcome in counted))},
        [example for outcome in counted for example in outcome.examples],
        sets=len(counted),
        truncated=sum(outcome.more.get("truncated", 0) for outcome in counted),
    )
    slots = functools.reduce(operator.add, (outcome.compression for outcome in counted), Compression())
    return [dataclasses.replace(total, compression=slots)]
