"""A plan as a picture."""

import io
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure


def plot_plan(told: Mapping[str, Any], *, title: str) -> bytes:
    """Draws throughput over latency of each batch, the memory that it takes, and what the method gains.

    Args:
      told: of `planning.report.report`.
      title: of the picture.

    Returns:
      A PNG file.
    """
    panels = 3 if told["gains"] else 2
    figure = Figure(figsize=(4.5 * panels, 4), layout="constrained")
    axes = figure.subplots(1, panels)
    _draw_speed(axes[0], told["batches"])
    _draw_memory(axes[1], told["batches"], told["device"]["memory_bytes"])
    if told["gains"]:
        _draw_gains(axes[2], told)
    figure.suptitle(title, fontsize="medium")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    return drawn.getvalue()


def _draw_speed(axes: Any, batches: list[dict[str, Any]]) -> None:
    axes.plot([x["ms_a_token"] for x in batches], [x["tokens_a_second"] for x in batches], "C0-", linewidth=1)
    for fits, colour, label in ((True, "C0", "fits"), (False, "C3", "does not fit")):
        chosen = [x for x in batches if x["fits"] is fits]
        axes.plot([x["ms_a_token"] for x in chosen], [x["tokens_a_second"] for x in chosen], f"{colour}o", label=label)
    for x in batches:
        axes.annotate(x["batch"], (x["ms_a_token"], x["tokens_a_second"]), fontsize="x-small")
    axes.set(xlabel="ms a token", ylabel="tokens a second", title="by batch", xscale="log", yscale="log")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)


def _draw_memory(axes: Any, batches: list[dict[str, Any]], memory: int) -> None:
    axes.plot([x["batch"] for x in batches], [x["total_bytes"] / 1e9 for x in batches], "C0.-")
    axes.axhline(memory / 1e9, color="C3", linestyle="--", label="memory")
    axes.set(xlabel="batch", ylabel="GB of a device", title="where memory ends", xscale="log")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)


def _draw_gains(axes: Any, told: Mapping[str, Any]) -> None:
    gains = told["gains"]
    axes.plot([x["acceptance"] for x in gains], [x["gain"] for x in gains], "C0.-")
    axes.axhline(1, color="grey", linewidth=1)
    axes.set(xlabel="acceptance", ylabel="tokens a second over plain decoding's", title=told["method"], xlim=(0, 1))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
