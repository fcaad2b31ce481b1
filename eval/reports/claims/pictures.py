"""Pictures of what one would rather look at than read."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from eval.reports.claims.claim import Rows
from eval.reports.claims.table import Cell, Row
from eval.reports.drawing import mark

INCH_A_BAR, INCH_A_GROUP = 0.11, 0.3
TEN = 10
"""Colours that matplotlib takes in turn."""


def bars(
    rows: Rows,
    *,
    group: Cell,
    bar: Cell,
    height: str,
    label: str,
    interval: str = "interval",
    line: float | None = None,
) -> bytes:
    """Draws bars side by side within groups, with intervals where rows have them.

    Args:
      rows: a bar each.
      group, bar: name a row's group and, within it, its bar.
      height: field that is drawn.
      label: of the axis.
      interval: field of a row's bounds.
      line: height of a line across, as of plain decoding; None for none.
    """
    from matplotlib import colormaps

    groups, kinds = (list(dict.fromkeys(name(row) for row in rows)) for name in (group, bar))
    width = 2.5 + len(groups) * (INCH_A_GROUP + len(kinds) * INCH_A_BAR)
    figure, axes = _axes(max(5.0, width), 3.6)
    for i, kind in enumerate(kinds):
        mine = [row for row in rows if bar(row) == kind and row.get(height) is not None]
        places = [groups.index(group(row)) + (i - (len(kinds) - 1) / 2) * 0.84 / len(kinds) for row in mine]
        colour = f"C{i}" if len(kinds) <= TEN else colormaps["tab20"](i)
        axes.bar(places, [row[height] for row in mine], 0.8 / len(kinds), label=kind, color=colour)
        _errors(axes, places, mine, height, interval)
    if line is not None:
        axes.axhline(line, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(label)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small", frameon=False)
    return _png(figure)


def curves(
    rows: Rows,
    *,
    x: str,
    y: str,
    line: Cell,
    point: Cell | None = None,
    labels: tuple[str, str],
    level: Mapping,
) -> bytes:
    """Draws points of two figures, joined line by line.

    Args:
      rows: a point each, in the order in which those of a line are joined.
      x, y: fields that are drawn.
      line: names a row's line.
      point: names what stands beside its point; None for nothing.
      labels: of the two axes.
      level: heights of lines across, by name.
    """
    figure, axes = _axes(6.0, 3.8)
    for i, name in enumerate(dict.fromkeys(line(row) for row in rows)):
        mine = [row for row in rows if line(row) == name]
        axes.plot([row[x] for row in mine], [row[y] for row in mine], marker=mark(i), label=name)
        for row in mine if point is not None else ():
            place = (row[x], row[y])
            axes.annotate(point(row), place, xytext=(4, 4), textcoords="offset points", fontsize="small")
    for name, height in level.items():
        axes.axhline(height, color="gray", linewidth=0.8, linestyle=":", label=name)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    return _png(figure)


def picture(draw: Callable[..., bytes], choose: Callable[[Rows], Rows], **options: Any) -> Callable[[Rows], bytes]:
    """Returns what draws some of a claim's rows with options."""
    return lambda rows: draw(choose(rows), **options)


def _errors(axes: Any, places: Sequence[float], rows: Iterable[Row], height: str, interval: str) -> None:
    bounded = [(place, row) for place, row in zip(places, rows, strict=True) if row.get(interval)]
    if bounded:
        heights = [row[height] for _, row in bounded]
        below = [max(0.0, row[height] - row[interval]["low"]) for _, row in bounded]
        above = [max(0.0, row[interval]["high"] - row[height]) for _, row in bounded]
        at = [place for place, _ in bounded]
        axes.errorbar(at, heights, yerr=[below, above], fmt="none", ecolor="black", elinewidth=0.8, capsize=1.5)


def _axes(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # matplotlib takes a second to import.

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _png(figure: Any) -> bytes:
    drawn = io.BytesIO()
    # Without the software's version: the same figures then give the same file.
    figure.savefig(drawn, format="png", dpi=100, metadata={"Software": None})
    return drawn.getvalue()
