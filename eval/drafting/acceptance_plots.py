"""Mean accepted tokens as pictures: a study each."""

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

Row = dict[str, Any]


def plot_study(study: str, rows: Sequence[Row], *, title: str) -> bytes:
    """Draws the rows of a study.

    Args:
      study: its name.
      rows: of the report.
      title: of the picture.

    Returns:
      A PNG file.
    """
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    {"cold-start": _curves, "width-depth": _shapes, "temperature": _temperatures}.get(study, _bars)(axes, rows)
    axes.set_ylabel("mean accepted tokens")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize="small")
    axes.set_title(title, fontsize="medium")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    return drawn.getvalue()


def _curves(axes: Any, rows: Sequence[Row]) -> None:
    for learner in dict.fromkeys(row["learner"] for row in rows):
        mine = [row for row in rows if row["learner"] == learner]
        _line(axes, [row["seen_tokens"] for row in mine], mine, "mean_accepted_tokens", f"learns from {learner}")
    axes.set_xlabel("tokens of answers seen before")


def _shapes(axes: Any, rows: Sequence[Row]) -> None:
    for width in dict.fromkeys(row["width"] for row in rows):
        mine = [row for row in rows if row["width"] == width]
        _line(axes, [row["nodes"] for row in mine], mine, "mean_accepted_tokens", f"width {width}")
    ordered = sorted(rows, key=lambda row: row["nodes"])
    _line(axes, [row["nodes"] for row in ordered], ordered, "chain_mean_accepted_tokens", "chain", style="k--")
    axes.set_xlabel("drafted nodes; along a line, the depth grows")


def _temperatures(axes: Any, rows: Sequence[Row]) -> None:
    rows = [row for row in rows if row["category"] == "all"]
    for name in dict.fromkeys(_name(row) for row in rows):
        mine = [row for row in rows if _name(row) == name]
        heat = [row["temperature"] for row in mine]
        _line(axes, heat, mine, "mean_accepted_tokens", name)
        if any(row.get("chain_mean_accepted_tokens") for row in mine):
            _line(axes, heat, mine, "chain_mean_accepted_tokens", f"{name}: its chain", style=".--")
    axes.set_xlabel("temperature")


def _bars(axes: Any, rows: Sequence[Row]) -> None:
    groups = list(dict.fromkeys(row["category"] for row in rows))
    heats = len({row["temperature"] for row in rows}) > 1
    names = [_name(row) + (f", T = {row['temperature']:g}" if heats else "") for row in rows]
    kinds = list(dict.fromkeys(names))
    for i, kind in enumerate(kinds):
        mine = [row for row, name in zip(rows, names, strict=True) if name == kind]
        places = [groups.index(row["category"]) + (i - (len(kinds) - 1) / 2) * 0.8 / len(kinds) for row in mine]
        axes.bar(places, [row["mean_accepted_tokens"] or 0 for row in mine], 0.7 / len(kinds), label=kind)
        chains = [row.get("chain_mean_accepted_tokens") for row in mine]
        shown = [(place, value) for place, value in zip(places, chains, strict=True) if value is not None]
        if shown:
            axes.plot(*zip(*shown, strict=True), "k_", markersize=12, label="its chain" if i == 1 else None)
    axes.set_xticks(range(len(groups)), groups, rotation=20)


def _line(axes: Any, x: Sequence[Any], rows: Sequence[Row], field: str, label: str, *, style: str = ".-") -> None:
    known = [(at, row[field]) for at, row in zip(x, rows, strict=True) if row.get(field) is not None]
    if known:
        axes.plot(*zip(*known, strict=True), style, label=label)


def _name(row: Row) -> str:
    return row["method"] if row["tree"] is None else f"{row['method']}, {row['tree']}"
