"""Modelled decoding of one model on more and more chips, with as many rows for each chip."""

import dataclasses
import io
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure

from eval.chips.plan_cases import Case, exchanges, planned_sent_bytes
from jax_smash.cli.plan import sizes
from jax_smash.planning.compiled import compiled_programs
from jax_smash.planning.planner import Plan
from jax_smash.planning.topology import parse_topology
from jax_smash.planning.work import seconds

COMPILED_LAYERS = 2
"""Layers of the shapes that are compiled."""


def meshes(devices: int, kv_heads: int) -> Iterator[str]:
    """Yields the meshes of so many devices whose `tp` is a power of two, the others all in `data` or all in `fsdp`.

    With a `tp` of more than there are KV heads each device would have a whole one, and rows' caches more than once.
    """
    tp = 1
    while devices % tp == 0 and tp <= kv_heads:
        others = devices // tp
        yield from (f"{axis}={others},tp={tp}" for axis in ("data", "fsdp")) if others > 1 else (f"tp={tp}",)
        tp *= 2


def scaled(case: Case, chips: Sequence[str], rows: int) -> list[dict[str, Any]]:
    """Returns a row for each slice and mesh that the model can be divided over.

    Rows of slices that fit have `efficiency`: tokens a second and chip over those of the first slice, by the mesh that
    gives most of each. `best` marks that mesh.

    Args:
      case: of which device, mesh and batch are left aside.
      chips: slices, the smallest first.
      rows: of each chip.

    Raises:
      ValueError: a slice is unknown, or on the first one nothing fits.
    """
    found: list[dict[str, Any]] = []
    kv_heads = sizes(case.shape).num_kv_heads
    for chip in chips:
        there = parse_topology(chip)
        batch = rows * there.chips
        mine = [x for mesh in meshes(there.devices, kv_heads) if (x := _row(case, chip, mesh, batch)) is not None]
        fitting = [x for x in mine if x["fits"]]
        best = max(fitting, key=lambda x: x["tokens_a_second"], default=None)
        found += [x | {"best": x is best} for x in mine]
    first = next((x for x in found if x["best"] and x["chip"] == chips[0]), None)
    if first is None:
        raise ValueError(f"{case.shape} with {rows} rows a chip must fit {chips[0]}, and by no mesh it does")
    return [x | {"efficiency": x["tokens_a_second_chip"] / first["tokens_a_second_chip"]} for x in found]


def held_against(case: Case, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compiles a step of a truncated shape for the best mesh of each slice, and compares what a device sends.

    Args:
      case: as of `scaled`.
      rows: of `scaled`.
    """
    found = []
    for row in rows:
        if row["best"]:
            mine = {"device": row["chip"], "mesh": row["mesh"], "batch": row["batch"], "layers": COMPILED_LAYERS}
            plan = dataclasses.replace(case, **mine).plan()
            (decode,) = compiled_programs(plan, ("decode",))
            found.append(mine | {"planned_sent_mb": planned_sent_bytes(plan) / 1e6} | exchanges(decode))
    return found


def _row(case: Case, chip: str, mesh: str, batch: int) -> dict[str, Any] | None:
    try:
        plan = dataclasses.replace(case, device=chip, mesh=mesh, batch=batch).plan()
    except ValueError:  # It does not divide the model.
        return None
    there = plan.question.topology
    told = {"chip": chip, "chips": there.chips, "devices": there.devices, "mesh": mesh, "batch": batch}
    return told | _figures(plan)


def _figures(plan: Plan) -> dict[str, Any]:
    step, speed = plan.step(), plan.speed()
    links = seconds([part for part in step if part.name == "links"], plan.chip)
    return {
        "fits": speed.memory.fits,
        "total_mb": speed.memory.total / 1e6,
        "step_ms": 1e3 * speed.step,
        "links_ms": 1e3 * links,
        "sent_mb": planned_sent_bytes(plan) / 1e6,
        "tokens_a_second": speed.throughput,
        "tokens_a_second_chip": speed.throughput / plan.question.topology.chips,
    }


def plot_scaled(rows: Sequence[dict[str, Any]], *, title: str) -> bytes:
    """Draws throughput against a straight line, and where the time of a step goes, by the best mesh of each slice.

    Args:
      rows: of `scaled`.
      title: of the picture.

    Returns:
      A PNG file.
    """
    best = [x for x in rows if x["best"]]
    chips = [x["chips"] for x in best]
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(chips, [x["tokens_a_second"] for x in best], "C0o-", label="modelled")
    ideal = [best[0]["tokens_a_second_chip"] * n for n in chips]
    left.plot(chips, ideal, "C7--", linewidth=1, label="as many a chip as the first")
    left.set(xlabel="chips", ylabel="tokens a second", xscale="log", yscale="log")
    left.set_xticks(chips, [str(n) for n in chips])
    left.minorticks_off()
    left.legend(fontsize="small")
    left.grid(alpha=0.3)
    at = range(len(best))
    own = [x["step_ms"] - x["links_ms"] for x in best]
    right.bar(at, own, color="C0", label="memory and products")
    right.bar(at, [x["links_ms"] for x in best], bottom=own, color="C3", label="links")
    right.set_xticks(at, [f"{x['chip']}\n{x['mesh']}" for x in best], fontsize="x-small")
    right.set_ylabel("ms a step")
    right.legend(fontsize="small")
    figure.suptitle(title, fontsize="medium")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    return drawn.getvalue()
