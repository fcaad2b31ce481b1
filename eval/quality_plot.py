"""Scores by task and method, with their intervals, as a picture."""

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

HIGHEST = {"perplexity": None}
"""Upper end of a metric's axis where it is not 1; None leaves it open."""


SECOND = ("acc_norm", "distinct_4grams")
"""Metrics that stand beside another of the same task."""


def plot_scores(rows: Sequence[dict[str, Any]], *, title: str) -> bytes:
    """Draws the rows of a quality report: shares in one panel, perplexities in another.

    Where tokens shared slots, a third has the shares against the tokens a slot.

    Args:
      rows: of the report.
      title: of the picture.

    Returns:
      A PNG file.
    """
    panels = [
        ("share", [row for row in rows if row["metric"] not in HIGHEST]),
        ("perplexity a token", [row for row in rows if row["metric"] in HIGHEST]),
    ]
    panels = [(label, chosen) for label, chosen in panels if chosen]
    widths = [max(2, len({_name(row) for row in chosen})) for _, chosen in panels]
    fused = any("output_compression" in row for row in rows)
    widths += [6] if fused else []
    figure = Figure(figsize=(2.5 + 0.6 * sum(widths), 5), layout="constrained")
    axes = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    for axis, (label, chosen) in zip(axes, panels, strict=False):
        _draw(axis, chosen)
        axis.set_ylabel(f"{label}, 95% interval")
        axis.set_ylim(0, HIGHEST.get(chosen[0]["metric"], 1))
    axes[0].legend(fontsize="small")
    if fused:
        _draw_compression(axes[-1], [row for row in rows if row["metric"] not in HIGHEST])
    figure.suptitle(title, fontsize="medium")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    return drawn.getvalue()


def _draw(axis: Any, rows: Sequence[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(_name(row) for row in rows))
    labels = _labels(rows)
    contenders = list(dict.fromkeys(labels))
    for i, contender in enumerate(contenders):
        mine = [row for row, label in zip(rows, labels, strict=True) if label == contender]
        # Contenders stand side by side within a task's place.
        places = [names.index(_name(row)) + (i - (len(contenders) - 1) / 2) * 0.6 / len(contenders) for row in mine]
        scores = [row["score"] for row in mine]
        bounds = [row["interval"] or {"low": row["score"], "high": row["score"]} for row in mine]
        below = [max(0.0, score - b["low"]) for score, b in zip(scores, bounds, strict=True)]
        above = [max(0.0, b["high"] - score) for score, b in zip(scores, bounds, strict=True)]
        axis.errorbar(places, scores, yerr=[below, above], fmt="o", capsize=3, label=contender)
    axis.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize="small")
    axis.set_xlim(-0.6, len(names) - 0.4)
    axis.grid(axis="y", alpha=0.3)


def _draw_compression(axis: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Draws a line a task; what has a slot a token stands at 1."""
    for name in dict.fromkeys(_name(row) for row in rows):
        points = sorted((row.get("output_compression", 1.0), row["score"]) for row in rows if _name(row) == name)
        axis.plot(*zip(*points, strict=True), marker="o", label=name)
    axis.set_xlabel("output tokens a slot")
    axis.set_ylim(0, 1)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def _labels(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns who was measured in each row: the method, and of its settings what is not the same in all."""
    told = [
        (
            row["method"],
            *(str(row["settings"].get(name, "")) for name in ("confidence", "weights", "modules")),
            row["model"],
        )
        for row in rows
    ]
    kept = [0] + [i for i in range(1, 5) if len({parts[i] for parts in told}) > 1]
    return [", ".join(parts[i] for i in kept if parts[i]) for parts in told]


def _name(row: dict[str, Any]) -> str:
    settings = row["settings"]
    detail = settings.get("length") or str(settings.get("file", "")).partition("_")[0]
    metric = row["metric"] if row["metric"] in SECOND else ""
    return " ".join(str(part) for part in (row["task"], detail, metric) if part)
