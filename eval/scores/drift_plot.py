"""Errors of long outputs by position, as a picture."""

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

PANELS = (
    ("error", "low", "high", "share of tokens the plain base would not choose"),
    ("nats_below_best", "nats_low", "nats_high", "nats a token below the base's best"),
)
MARKERS = "os^Dv"
MODES = {"ar": "black", "blind": "tab:red", "exact": "tab:blue", "checked": "tab:green"}
"""A colour a mode; confidences differ by their markers."""


def plot_drift(rows: Sequence[dict[str, Any]], *, title: str) -> bytes:
    """Draws the rows of a drift report: errors, and how large they are, by position, with 95% intervals over texts.

    Args:
      rows: of the report.
      title: of the picture.

    Returns:
      A PNG file.
    """
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    confidences = list(dict.fromkeys(row["confidence"] for row in rows if row["confidence"] is not None))
    for axis, (field, low, high, label) in zip(figure.subplots(1, 2), PANELS, strict=True):
        for i, row in enumerate(rows):
            told = row["confidence"]
            marker = "x" if told is None else MARKERS[confidences.index(told) % len(MARKERS)]
            _draw(axis, row, (field, low, high), marker=marker, shift=i / len(rows) - 0.5)
        names = [f"{bucket['first']}–{bucket['last']}" for bucket in rows[0]["by_position"]]
        axis.set_xticks(range(len(names)), names)
        axis.set_xlabel("position in the output")
        axis.set_ylabel(f"{label}, 95% interval", fontsize="small")
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", alpha=0.3)
    figure.axes[0].legend(fontsize="small")
    figure.suptitle(title, fontsize="medium")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    return drawn.getvalue()


def _draw(axis: Any, row: dict[str, Any], fields: tuple[str, str, str], *, marker: str, shift: float) -> None:
    """Draws one row, moved aside a little so that bars do not hide each other."""
    field, low, high = fields
    known = [(i, bucket) for i, bucket in enumerate(row["by_position"]) if bucket[field] is not None]
    values = [bucket[field] for _, bucket in known]
    bounds = [(bucket[low], bucket[high]) if bucket[low] is not None else (bucket[field],) * 2 for _, bucket in known]
    below = [max(0.0, value - bound[0]) for value, bound in zip(values, bounds, strict=True)]
    above = [max(0.0, bound[1] - value) for value, bound in zip(values, bounds, strict=True)]
    name = row["mode"] if row["confidence"] is None else f"{row['mode']} {row['confidence']:g}"
    axis.errorbar(
        [i + 0.4 * shift for i, _ in known],
        values,
        yerr=[below, above],
        marker=marker,
        color=MODES[row["mode"]],
        capsize=2,
        label=name,
    )
