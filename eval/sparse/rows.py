"""Rows of a comparison of policies: what was read, what was found, how far it lies from dense decoding."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from eval.scores.quality_rows import signed
from eval.sparse.arms import Arm
from eval.tasks.outcome import Outcome

COLUMNS = (
    *("policy", "protocol", "budget", "task", "metric", "slots", "share", "scorer_share", "n", "score"),
    *("low", "high", "difference", "seconds_per_example"),
)


def rows_of(
    arm: Arm, outcomes: Sequence[Outcome], dense: Sequence[Outcome] | None, *, task: str, protocol: str, length: int
) -> list[dict[str, Any]]:
    """Returns the rows of an arm's outcomes.

    Args:
      arm: a policy at a budget.
      outcomes: one a metric.
      dense: those of dense decoding on the same examples; None in its own rows.
      task: its name, as it was asked for.
      protocol: how prompts were read.
      length: slots of a row for which the bytes are counted.
    """
    rows = []
    for i, outcome in enumerate(outcomes):
        difference = None if dense is None else outcome.compare(outcome.examples, dense[i].examples)
        rows.append(
            _heading(arm, task, protocol, length)
            | {
                "metric": outcome.metric,
                "n": outcome.n,
                "score": outcome.score,
                "interval": None if outcome.interval is None else dataclasses.asdict(outcome.interval),
                "difference": None if difference is None else dataclasses.asdict(difference),
                "settings": outcome.settings,
                **outcome.more,
            }
        )
    return rows


def unmet_row(arm: Arm, *, task: str, protocol: str, length: int) -> dict[str, Any]:
    """Returns the row that says why a policy cannot keep to a budget."""
    nothing = dict.fromkeys(("metric", "n", "score", "interval", "difference"))
    return _heading(arm, task, protocol, length) | nothing | {"settings": {}}


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row flat enough for a table."""
    share = None if row["unmet"] else row["bytes_per_step"] / row["dense_bytes_per_step"]
    flat = {
        "budget": f"{row['budget']:.0%}",
        "share": share,
        "scorer_share": row["scorer_bytes_per_step"] / row["dense_bytes_per_step"],
        "difference": signed(row["difference"]),
        "metric": row["metric"] or f"not met: {row['unmet']}",
    }
    return row | flat | (row["interval"] or {})


def _heading(arm: Arm, task: str, protocol: str, length: int) -> dict[str, Any]:
    return {
        "policy": arm.name,
        "is_control": arm.is_control,
        "protocol": protocol,
        "budget": arm.asked,
        "task": task,
        "length": length,
        "slots": arm.slots,
        "bytes_per_step": arm.cache + arm.scorer,
        "scorer_bytes_per_step": arm.scorer,
        "dense_bytes_per_step": arm.dense,
        "predictor_bytes_per_step": arm.predictor,
        "unmet": arm.unmet,
    }
