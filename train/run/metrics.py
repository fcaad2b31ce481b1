"""What a run measured: lines of JSON, and a plot of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from jax_smash.hosts import is_first
from train.run.step import Measured

LOSSES = (("loss", "training"), ("choice_loss", "choice"), ("held_out_loss", "held out"))
"""What a plot shows, and how it is called there."""


class Metrics:
    """A JSONL file of what a run measured; lines after the step that a run resumes from are dropped.

    Of several hosts the first one writes it.
    """

    def __init__(self, path: Path, step: int):
        self.path = path
        if not is_first():
            return
        kept = [line for line in read_metrics(path) if line["step"] <= step] if step else []
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
        os.replace(temporary, path)

    def write(self, **values: Any) -> None:
        """Appends one line."""
        if not is_first():
            return
        with self.path.open("a") as file:
            file.write(json.dumps(values) + "\n")

    def measured(self, step: int, name: str, measured: Measured, **also: Any) -> None:
        """Appends what a step's weights were measured to be on some sets, under these sets' name."""
        means = {f"{name}_means": measured.means} if measured.means else {}
        self.write(step=step, **also, **{f"{name}_loss": measured.loss, name: measured.by_set}, **means)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a metrics file; a last line cut off by a crash is left out."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def plot_losses(metrics: Path, output: Path) -> None:
    """Draws the training and held-out losses of a metrics file over the steps into a PNG."""
    from matplotlib.figure import Figure  # Slow to import, and of use only where there is something to draw.

    lines = read_metrics(metrics)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name, label in LOSSES:
        points = [(line["step"], line[name]) for line in lines if name in line]
        if points or name == "loss":
            axes.plot(
                *zip(*points, strict=True) if points else ((), ()), label=label, marker="." if len(points) < 40 else ""
            )
    by_set = [(line["step"], line[kind]) for line in lines for kind in ("choice", "held_out") if kind in line]
    for name in by_set[0][1] if by_set else ():
        points = [(step, losses[name]) for step, losses in by_set if name in losses]
        axes.plot(*zip(*points, strict=True), label=name, linewidth=0.7, linestyle=":")
    axes.set(xlabel="step", ylabel="loss a target")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    temporary = output.with_suffix(".part.png")
    figure.savefig(temporary, dpi=120)
    os.replace(temporary, output)
