"""Scores by task and method, with their intervals, as a picture."""

import io
import math
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from matplotlib.figure import Figure

from eval.tasks.totals import ALL

PLACE, LETTER, LINE = 0.6, 0.07, 0.2
"""Inches: a task's place, and a letter's width and a line's height in a legend."""

HIGHEST = {"perplexity": None, "word_perplexity": None}
"""Upper end of a metric's axis where it is not 1; None leaves it open."""


SECOND = ("acc_norm", "distinct_4grams", "word_perplexity")
"""Metrics that stand beside another of the same task."""

SETTINGS = ("confidence", "token_confidence", "weights", "modules")
"""Settings that tell contenders apart."""

POINT = 0.01
"""A point of a score, within which another is no worse for use."""

WANTED = 1.5
"""Tokens a slot that fused slots are to reach at the score of the baseline."""


def plot_scores(rows: Sequence[dict[str, Any]], *, title: str) -> bytes:
    """Draws the rows of a quality report: shares in one panel, perplexities in another.

    Where tokens shared slots, a third has the shares against the tokens a slot: of all tasks together, where there are
    several.

    Args:
      rows: of the report.
      title: of the picture.

    Returns:
      A PNG file.
    """
    panels = [
        ("share", [row for row in rows if row["metric"] not in HIGHEST]),
        ("perplexity a token or word", [row for row in rows if row["metric"] in HIGHEST]),
    ]
    panels = [(label, chosen) for label, chosen in panels if chosen]
    labels = _labels(rows)
    widest = 1 + math.ceil(LETTER * max(map(len, labels)) / PLACE)
    widths = [max(widest, len({_name(row) for row in chosen})) for _, chosen in panels]
    fused = any("output_compression" in row for row in rows)
    widths += [max(6, widest)] if fused else []
    size = 2.5 + PLACE * sum(widths), 5 + LINE * len(set(labels))
    figure = Figure(figsize=size, layout="constrained")
    parts = figure.subfigures(1, len(widths), width_ratios=widths, squeeze=False)[0]
    axes = [part.subplots() for part in parts]
    for axis, (label, chosen) in zip(axes, panels, strict=False):
        _draw(axis, chosen)
        axis.set_ylabel(f"{label}, 95% interval")
        axis.set_ylim(0, HIGHEST.get(chosen[0]["metric"], 1))
    if fused:
        _draw_compression(axes[-1], [row for row in rows if row["metric"] not in HIGHEST])
    for part in parts:
        part.legend(loc="outside lower left", fontsize="small")
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
    """Draws scores against tokens a slot; what has a slot a token stands at 1."""
    chosen = [row for row in rows if row["task"] == ALL] or rows
    if len({_name(row) for row in chosen}) == 1:
        _draw_trade(axis, chosen)
    else:
        for name in dict.fromkeys(_name(row) for row in chosen):
            points = sorted((_slots(row), row["score"]) for row in chosen if _name(row) == name)
            axis.plot(*zip(*points, strict=True), marker="o", label=name)
        axis.set_ylim(0, 1)
    axis.set_xlabel("output tokens a slot")
    axis.grid(alpha=0.3)


def _draw_trade(axis: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Draws one set of examples: a line for each contender, its points told by their confidence.

    Bars are the 95% interval of the difference from the baseline, and so have no part in the baseline's own doubt.
    """
    labels = _labels(rows, ("weights", "modules"))
    tokens = {row["settings"].get("token_confidence") for row in rows} - {None}
    baseline = rows[0]["score"]
    axis.axhspan(baseline - POINT, baseline + POINT, alpha=0.15, color="gray", label="baseline ± 1 point")
    axis.axhline(baseline, color="gray", linewidth=1)
    axis.axvline(WANTED, color="gray", linestyle=":", label=f"{WANTED:g} tokens a slot")
    for label in dict.fromkeys(labels):
        mine = sorted((row for row, of in zip(rows, labels, strict=True) if of == label), key=_slots)
        slots, scores = [_slots(row) for row in mine], [row["score"] for row in mine]
        axis.errorbar(slots, scores, yerr=_bars(mine, baseline), marker="o", capsize=3, label=label)
        for row in mine:
            if "confidence" in row["settings"]:
                place = (_slots(row), row["score"])
                text = f"{row['settings']['confidence']:g}"
                token = row["settings"].get("token_confidence")
                if len(tokens) > 1 and token is not None:
                    text += f" and {token:g}"
                axis.annotate(text, place, xytext=(4, 4), textcoords="offset points", fontsize="small")
    axis.margins(x=0.1)
    axis.set_ylabel(f"share, {_name(rows[0])}")
    axis.set_title("by confidence; bars: 95% interval\nof the difference from the baseline", fontsize="small")


def _bars(rows: Sequence[dict[str, Any]], baseline: float) -> list[list[float]]:
    """Returns how far the interval of each row's difference reaches below and above its score."""
    below, above = [], []
    for row in rows:
        bounds = (row.get("difference") or {}).get("interval")
        low, high = (row["score"],) * 2 if bounds is None else (baseline + bounds["low"], baseline + bounds["high"])
        below.append(max(0.0, row["score"] - low))
        above.append(max(0.0, high - row["score"]))
    return [below, above]


def _slots(row: dict[str, Any]) -> float:
    return row.get("output_compression", 1.0)


def _labels(rows: Sequence[dict[str, Any]], told: Sequence[str] = SETTINGS) -> list[str]:
    """Returns who was measured in each row: the method, and of some settings what is not the same in all."""
    columns = {name: [str(row["settings"].get(name, "")) for row in rows] for name in told}
    columns["model"] = [row["model"] for row in rows]
    labels = [row["method"] for row in rows]
    for name, column in columns.items():
        if len(set(column)) > 1:
            values = _tails(column)
            labels = [
                f"{label}, {name.replace('_', ' ')} {value}" if value else label
                for label, value in zip(labels, values, strict=True)
            ]
    return labels


def _tails(names: Sequence[str]) -> list[str]:
    """Returns names with as few of a folder's last parts as tell them apart."""
    parts = [PurePath(name).parts for name in names]
    longest = max(map(len, parts))
    ends = (["/".join(part[-n:]) for part in parts] for n in range(1, longest))
    return next((end for end in ends if len(set(end)) == len(set(names))), list(names))


def _name(row: dict[str, Any]) -> str:
    settings = row["settings"]
    detail = settings.get("length") or str(settings.get("file", "")).partition("_")[0]
    metric = row["metric"] if row["metric"] in SECOND else ""
    return " ".join(str(part) for part in (row["task"], detail, metric) if part)
