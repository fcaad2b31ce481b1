"""Pictures of studies of sparse decoding."""

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from eval.reports.drawing import mark


def plot_kinds(rows: Sequence[dict[str, Any]], *, title: str, table: Sequence[Sequence[float]] | None = None) -> bytes:
    """Draws overlaps by kind with their intervals, and where there is one a table of layers; returns a PNG file.

    Args:
      rows: with `kind`, `score` and `interval`; the kind `chance` is a line.
      title: of the picture.
      table: the overlap of each two layers.
    """
    figure = Figure(figsize=(6 if table is None else 11, 4.5), layout="constrained")
    axes = figure.subplots(1, 1 if table is None else 2, squeeze=False)[0]
    kinds = [row for row in rows if row["kind"] != "chance"]
    bars = [_reach(row) for row in kinds]
    axes[0].errorbar(
        [row["score"] for row in kinds],
        range(len(kinds)),
        xerr=list(zip(*bars, strict=True)),
        fmt="o",
        capsize=3,
    )
    axes[0].set_yticks(range(len(kinds)), [row["kind"] for row in kinds])
    axes[0].invert_yaxis()
    for row in rows:
        if row["kind"] == "chance":
            axes[0].axvline(row["score"], color="gray", linestyle=":", label="by chance")
            axes[0].legend(fontsize="small")
    axes[0].set(xlabel="share of a top set that is held, 95% interval", xlim=(0, 1))
    axes[0].grid(axis="x", alpha=0.3)
    if table is not None:
        drawn = axes[1].imshow(table, vmin=0)
        figure.colorbar(drawn, ax=axes[1], label="overlap of heads")
        axes[1].set(xlabel="layer", ylabel="layer")
    return _png(figure, title)


def plot_lines(rows: Sequence[dict[str, Any]], *, title: str, value: str, label: str) -> bytes:
    """Draws a figure of each policy by the length of the context; returns a PNG file.

    Args:
      rows: with `policy`, `length` and the figure.
      title: of the picture.
      value: field of the figure.
      label: of its axis.
    """
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    for i, policy in enumerate(dict.fromkeys(row["policy"] for row in rows)):
        points = sorted((row["length"], row[value]) for row in rows if row["policy"] == policy)
        axis.plot(*zip(*points, strict=True), marker=mark(i), label=policy)
    axis.set(xlabel="tokens in the cache", ylabel=label, ylim=(0, None))
    axis.set_xscale("log", base=2)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    return _png(figure, title)


def plot_learned(rows: Sequence[dict[str, Any]], curve: Sequence[dict[str, Any]], *, title: str) -> bytes:
    """Draws the recall of trained predictors by tokens, and in the end by parameters; returns a PNG file.

    Args:
      rows: of the end, as of `eval.sparse.learning.learned`.
      curve: of all measurements.
      title: of the picture.
    """
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    by_tokens, by_size = figure.subplots(1, 2, sharey=True)
    for i, last in enumerate(rows):
        name, look = last["policy"], {"color": f"C{i % 10}", "marker": mark(i)}
        points = [(x["tokens"], x["score"]) for x in curve if (x["run"], x["policy"]) == (last["run"], name)]
        by_tokens.plot(*zip(*sorted(points), strict=True), label=name, **look)
        by_size.plot([last["parameters"]], [last["score"]], linestyle="", **look)
        by_size.annotate(
            name, (last["parameters"], last["score"]), xytext=(4, 4), textcoords="offset points", fontsize="small"
        )
        by_size.plot([last["parameters"]], [last["recent"]], linestyle="", marker="_", color="gray")
    by_tokens.set(xlabel="tokens trained on", ylabel="held-out recall")
    by_size.set(xlabel="parameters (gray: what the last entries hold)")
    by_tokens.legend(fontsize="small")
    for axis in (by_tokens, by_size):
        axis.grid(alpha=0.3)
    return _png(figure, title)


def _reach(row: dict[str, Any]) -> tuple[float, float]:
    bounds = row["interval"] or {"low": row["score"], "high": row["score"]}
    return max(0.0, row["score"] - bounds["low"]), max(0.0, bounds["high"] - row["score"])


def _png(figure: Figure, title: str) -> bytes:
    figure.suptitle(title, fontsize="medium")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    return drawn.getvalue()
