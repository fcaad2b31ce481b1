"""Cells that several tables share."""

from collections.abc import Callable
from typing import Any

from eval.claims.rows import ALL
from eval.claims.table import NOTHING, Cell, Row, figure, span, text

METHODS = {
    "ar": "plain",
    "official": "Token Recycling, as published",
    "transformers": "transformers, plain",
    "transformers-lookup": "transformers, prompt lookup",
}
TASKS = (ALL, "multi-turn", "translation", "summarization", "qa", "math reasoning", "rag")
"""Spec-Bench's, all together first."""

method = text("method", METHODS)
SHARES = ("accuracy", "acc", "acc_norm", "varied")
"""Metrics that are shares of examples, and are shown in per cent."""


def accepted(row: Row) -> str:
    """Writes mean accepted tokens, with their interval over all tasks alone: six more would not fit a page."""
    value, bounds = row.get("mean_accepted_tokens"), row.get("interval")
    if value is None or bounds is None or row.get("category", ALL) != ALL:
        return figure(value)
    return f"{figure(value)} ({span(bounds['low'], bounds['high'], value)})"


def tree(row: Row) -> str:
    """Writes the tree of a row that drafts."""
    return str(row["tree"]) if row.get("nodes") else NOTHING


def task(row: Row) -> str:
    """Writes a set of examples: its task, and its length or metric where these tell it apart."""
    length = row["settings"].get("length")
    more = [f"{length} tokens"] if length else []
    more += [row["metric"]] if row["metric"] in ("acc_norm", "distinct_4grams") else []
    return ", ".join((row["task"].replace("_", "-"), *more))


def score(row: Row) -> str:
    """Writes a score of quality with its interval; a share in per cent."""
    return _scored(row["score"], row["interval"], share=row["metric"] in SHARES)


def of(name: str, cell: Cell) -> Cell:
    """Returns what writes a cell of the row that stands in a field, and nothing where there is none."""
    return lambda row: cell(row[name]) if isinstance(row.get(name), dict) else NOTHING


def difference(row: Row) -> str:
    """Writes a difference from the baseline with its interval: points of a share, nats a token of a perplexity."""
    found: dict[str, Any] | None = row.get("difference")
    if found is None:
        return NOTHING
    bounds, points = found["interval"], found["unit"] == "share"
    scale, digits = (100, 1) if points else (1, 4)
    values = [found["value"]] + ([] if bounds is None else [bounds["low"], bounds["high"]])
    signed = [f"{scale * value:+.{digits}f}".replace("-", "−") for value in values]
    unit = " points" if points else " nats" if found["unit"].startswith("nats") else ""
    return signed[0] + unit + ("" if bounds is None else f" ({signed[1]} to {signed[2]})")


def ratio(name: str) -> Cell:
    """Returns what writes how many times as large something is."""
    return lambda row: NOTHING if row.get(name) is None else f"{figure(row[name])}×"


def percent(name: str) -> Cell:
    """Returns what writes a share in per cent."""
    return lambda row: NOTHING if row.get(name) is None else f"{100 * row[name]:.1f}%"


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


def _scored(value: float, bounds: dict[str, Any] | None, *, share: bool) -> str:
    if not share:
        return figure(value, 4) + ("" if bounds is None else f" ({span(bounds['low'], bounds['high'], value, 4)})")
    between = "" if bounds is None else f" ({100 * bounds['low']:.1f} to {100 * bounds['high']:.1f})"
    return f"{100 * value:.1f}%{between}"
