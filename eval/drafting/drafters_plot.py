"""A picture of drafters' accuracies by depth."""

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

SHOWN = ("top1", "top5")
"""Accuracies with a panel each."""


COLOURS = 10
"""Of matplotlib's cycle."""


def plot_drafters(rows: Sequence[dict[str, Any]], *, title: str) -> bytes:
    """Draws a line a drafter over its depths, with the 95% intervals, for the likeliest token and for five.

    Args:
      rows: of the report.
      title: of the picture.

    Returns:
      A PNG file.
    """
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    names = list(dict.fromkeys(row["drafter"] for row in rows))
    for axes, field in zip(figure.subplots(1, len(SHOWN), sharey=True), SHOWN, strict=True):
        for i, name in enumerate(names):
            mine = [row for row in rows if row["drafter"] == name and row[field] is not None]
            # Side by side, so that intervals do not hide each other.
            depth = [row["depth"] + 0.3 * (i / max(len(names) - 1, 1) - 0.5) for row in mine]
            reach = list(zip(*(_reach(row, field) for row in mine), strict=True))
            axes.errorbar(
                depth, [row[field] for row in mine], yerr=reach or None, fmt=".", capsize=2, label=name, **style(i)
            )
        axes.set_title(f"the target's token among the likeliest {field.removeprefix('top')}", fontsize="small")
        axes.set_xlabel("depth of the draft")
        axes.set_xticks(sorted({row["depth"] for row in rows}))
        axes.grid(axis="y", alpha=0.3)
        axes.set_ylim(0, 1)
    figure.axes[0].set_ylabel("share of guesses, 95% interval over texts")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), fontsize="small", loc="outside right upper")
    figure.suptitle(title, fontsize="medium")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    return drawn.getvalue()


def style(number: int) -> dict[str, str]:
    """Returns the colour and line of a drafter, none like another's of the first forty."""
    return {"color": f"C{number % COLOURS}", "linestyle": ("-", "--", ":", "-.")[number // COLOURS % 4]}


def _reach(row: dict[str, Any], field: str) -> tuple[float, float]:
    """Returns how far an interval reaches below and above its figure; of a single text nowhere."""
    interval = row[f"{field}_interval"]
    if interval is None:
        return 0.0, 0.0
    return max(row[field] - interval["low"], 0.0), max(interval["high"] - row[field], 0.0)
