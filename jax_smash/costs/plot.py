"""Cost curves as a picture."""

import io
from collections.abc import Sequence

from matplotlib.figure import Figure

from jax_smash.costs.curve import CostCurve


def plot_costs(curves: Sequence[CostCurve], *, title: str) -> bytes:
    """Draws T(m) / T(1) over the entries of a step, a line for each curve.

    Returns:
      A PNG file.
    """
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        label = f"batch {curve.batch}, T(1) = {1e3 * curve.seconds[0]:.3g} ms"
        axes.plot(curve.entries, curve.relative(), marker=".", label=label)
    axes.set(xlabel="entries m that a step reads a row", ylabel="T(m) / T(1)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    axes.set_title(title, fontsize="medium")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    return drawn.getvalue()
