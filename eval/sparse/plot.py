"""Scores by the share of the cache's bytes that a step reads: a panel a task, a line a policy."""

import io
import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter

from eval.reports.drawing import mark

COLUMNS = 3
PANEL = 4.2, 3.2
"""Inches."""

PLAIN = "dense"


def plot_sparsity(rows: Sequence[dict[str, Any]], *, title: str) -> bytes:
    """Draws the rows of a sparsity report that have a score.

    Args:
      rows: of the report.
      title: of the picture.

    Returns:
      A PNG file. Bars are 95% intervals; dense decoding is a grey line; controls are dashed. Perplexities have a
      logarithmic axis.

    Raises:
      ValueError: no row has a score.
    """
    scored = [row for row in rows if row["score"] is not None]
    panels = list(dict.fromkeys((row["task"], row["metric"]) for row in scored))
    if not panels:
        raise ValueError("a picture needs a row with a score; got none")
    policies = list(dict.fromkeys(row["policy"] for row in scored if row["policy"] != PLAIN))
    across = min(COLUMNS, len(panels))
    down = math.ceil(len(panels) / across)
    figure = Figure(figsize=(PANEL[0] * across + 2, PANEL[1] * down + 0.6), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for axis, (task, metric) in zip(axes, panels, strict=False):
        mine = [row for row in scored if (row["task"], row["metric"]) == (task, metric)]
        _draw(axis, mine, policies)
        axis.set_title(f"{task.partition(':')[0]}, n {mine[0]['n']}", fontsize="small")
        axis.set_ylabel(metric.replace("_", " "))
        if metric == "perplexity":
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
            axis.yaxis.set_minor_formatter(FormatStrFormatter("%g"))
        axis.set_xlabel("share of the cache's bytes read a step")
    for axis in axes[len(panels) :]:
        axis.remove()
    handles = dict(pair for axis in axes[: len(panels)] for pair in zip(*_legend(axis), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize="small")
    figure.suptitle(title, fontsize="medium")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    return drawn.getvalue()


def _draw(axis: Any, rows: Sequence[dict[str, Any]], policies: Sequence[str]) -> None:
    for i, policy in enumerate(policies):
        points = sorted(((_share(row), row) for row in rows if row["policy"] == policy), key=lambda pair: pair[0])
        if not points:
            continue
        shares, scores = [share for share, _ in points], [row["score"] for _, row in points]
        style = {"linestyle": "--", "alpha": 0.6} if points[0][1]["is_control"] else {}
        bars = [_reach(row) for _, row in points]
        axis.errorbar(
            shares,
            scores,
            yerr=list(zip(*bars, strict=True)),
            marker=mark(i),
            color=f"C{i % 10}",
            capsize=2,
            label=policy,
            **style,
        )
    for row in rows:
        if row["policy"] == PLAIN:
            axis.axhline(row["score"], color="gray", label=PLAIN)
    axis.grid(alpha=0.3)


def _legend(axis: Any) -> tuple[list[str], list[Any]]:
    handles, labels = axis.get_legend_handles_labels()
    return labels, handles


def _share(row: dict[str, Any]) -> float:
    return row["bytes_per_step"] / row["dense_bytes_per_step"]


def _reach(row: dict[str, Any]) -> tuple[float, float]:
    bounds = row["interval"] or {"low": row["score"], "high": row["score"]}
    return max(0.0, row["score"] - bounds["low"]), max(0.0, bounds["high"] - row["score"])
