"""Cells that several tables share."""

import dataclasses
from collections.abc import Callable
from typing import Any

from eval.reports.claims.rows import ALL
from eval.reports.claims.table import NOTHING, Cell, Row, figure, span, text
from eval.scores.intervals import wilson

METHODS = {
    "ar": "plain",
    "official": "Token Recycling, as published",
    "transformers": "transformers, plain",
    "transformers-lookup": "transformers, prompt lookup",
}
TASKS = (ALL, "multi-turn", "translation", "summarization", "qa", "math reasoning", "rag")
"""Spec-Bench's, all together first."""

method = text("method", METHODS)
tree = text("tree", {"off": "none"})
OF_SHARES = ("wilson",)
"""Kinds of intervals that a share has, which is shown in per cent."""


PLAIN_METRICS = ("accuracy", "acc", "perplexity")
"""Metrics that go without saying."""


def by_category(name: str, interval: str = "interval") -> Cell:
    """Returns what writes a figure, with its interval over all kinds of questions alone: six more would not fit."""

    def written(row: Row) -> str:
        value, bounds = row.get(name), row.get(interval)
        if value is None or bounds is None or category(row) != ALL:
            return figure(value)
        return f"{figure(value)} ({span(bounds['low'], bounds['high'], value)})"

    return written


def verification(row: Row) -> str:
    """Writes how drafts were checked, and the temperature where one is drawn at."""
    heat = row.get("temperature")
    if not heat:
        return "greedy"
    return f"{row['verify'].replace('-', ', ')} at {heat:g}"


def category(row: Row) -> str:
    """Writes the kind of questions that a row is of; `all` where it is of all kinds."""
    return str(row.get("category") or row.get("task") or ALL)


def task(row: Row) -> str:
    """Writes a set of examples: its task, and its length or metric where these tell it apart."""
    length = row["settings"].get("length")
    more = [f"{length} tokens"] if length else []
    more += [row["metric"].replace("_", " ")] if row["metric"] not in PLAIN_METRICS else []
    return ", ".join((row["task"].replace("_", "-"), *more))


def ruler_task(row: Row) -> str:
    """Writes a task of RULER."""
    return str(row["task"]).removeprefix("ruler_")


def score(row: Row) -> str:
    """Writes a score of quality with its interval; a share of right answers in per cent."""
    value, bounds = row["score"], row["interval"]
    if bounds is None:
        return figure(value, 4)
    if bounds["kind"] in OF_SHARES:
        return share(row)
    return f"{figure(value, 4)} ({span(bounds['low'], bounds['high'], value, 4)})"


def share(row: Row) -> str:
    """Writes a score that is a mean of shares in per cent, with its interval if there is one."""
    if row["score"] is None:
        return NOTHING
    value, bounds = f"{100 * row['score']:.1f}%", row["interval"]
    if bounds is not None and bounds["low"] == bounds["high"] == 0:
        # Older reports have a bootstrap's, which knows no doubt where all scores are alike.
        bounds = dataclasses.asdict(wilson(0, row["n"]))
    return value if bounds is None else f"{value} ({100 * bounds['low']:.1f} to {100 * bounds['high']:.1f})"


def of(name: str, cell: Cell) -> Cell:
    """Returns what writes a cell of the row that stands in a field, and nothing where there is none."""
    return lambda row: cell(row[name]) if isinstance(row.get(name), dict) else NOTHING


def difference(row: Row) -> str:
    """Writes a difference from the baseline with its interval: points of a share, nats of a perplexity."""
    found: dict[str, Any] | None = row.get("difference")
    if found is None:
        return NOTHING
    bounds, points = found["interval"], found["unit"] == "share"
    scale, digits = (100, 1) if points else (1, 4)
    values = [found["value"]] + ([] if bounds is None else [bounds["low"], bounds["high"]])
    signed = [f"{scale * value:+.{digits}f}".replace("-", "−") for value in values]
    unit = " points" if points else f" {found['unit']}" if found["unit"].startswith("nats") else ""
    return signed[0] + unit + ("" if bounds is None else f" ({signed[1]} to {signed[2]})")


def ratio(name: str) -> Cell:
    """Returns what writes how many times as large something is."""
    return lambda row: NOTHING if row.get(name) is None else f"{figure(row[name])}×"


def percent(name: str, interval: str = "") -> Cell:
    """Returns what writes a share in per cent.

    Args:
      name: of its field.
      interval: name of the field with its interval, where rows have one.
    """

    def written(row: Row) -> str:
        if row.get(name) is None:
            return NOTHING
        between = row.get(interval)
        bounds = f" ({100 * between['low']:.1f} to {100 * between['high']:.1f})" if between else ""
        return f"{100 * row[name]:.1f}%{bounds}"

    return written


def fraction(name: str, total: str) -> Cell:
    """Returns what writes so many of so many; nothing of none."""
    return lambda row: f"{row[name]} of {row[total]}" if row[total] else NOTHING


def shares(row: Row, name: str, low: str, high: str) -> str:
    """Writes a share in per cent, with the bounds that stand in two other fields."""
    if row.get(name) is None:
        return NOTHING
    between = "" if row.get(low) is None else f" ({100 * row[low]:.2f} to {100 * row[high]:.2f})"
    return f"{100 * row[name]:.2f}%{between}".replace("-", "−")


def joined(name: str) -> Callable[[Row], str]:
    """Returns what writes a list of values."""
    return lambda row: ", ".join(map(str, row[name])) or NOTHING
