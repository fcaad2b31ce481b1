"""Modelled time of a step by the nodes of its tree, as a picture."""

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure


def plot_tree_times(rows: Sequence[dict[str, Any]], *, title: str) -> bytes:
    """Draws the time of a step over that of plain decoding against the nodes of its tree.

    A panel has the lines of one chip, one for each batch; a dashed line beside it is the roofline's.

    Args:
      rows: of `eval.chips.tree_times`.
      title: of the picture.

    Returns:
      A PNG file.
    """
    chips = list(dict.fromkeys(row["chip"] for row in rows))
    figure = Figure(figsize=(1.5 + 4 * len(chips), 4), layout="constrained")
    panels = figure.subplots(1, len(chips), sharey=True, squeeze=False)[0]
    for panel, chip in zip(panels, chips, strict=True):
        _draw(panel, [row for row in rows if row["chip"] == chip])
        panel.set_title(chip, fontsize="medium")
    panels[0].set_ylabel("T(m) / T(1), modelled")
    figure.suptitle(title, fontsize="medium")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    return drawn.getvalue()


def _draw(panel: Any, rows: Sequence[dict[str, Any]]) -> None:
    for i, batch in enumerate(dict.fromkeys(row["batch_size"] for row in rows)):
        mine = [row for row in rows if row["batch_size"] == batch]
        nodes = [row["nodes"] for row in mine]
        least = [row["roofline_ms"] / mine[0]["roofline_ms"] for row in mine]
        panel.plot(nodes, [row["ratio"] for row in mine], f"C{i}o-", label=f"{batch} rows")
        panel.plot(nodes, least, f"C{i}--", linewidth=1, label=f"{batch} rows, roofline")
    panel.set_xscale("log", base=2)
    panel.set_xlabel("nodes, the root included")
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    panel.legend(fontsize="small")
