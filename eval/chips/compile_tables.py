"""What `eval.compile` prints."""

from collections.abc import Sequence
from typing import Any

from eval.reports.report import print_table

COLUMNS = (
    "program",
    "fits",
    "total_mb",
    "temp_mb",
    "body_mb",
    "ideal_mb",
    "traffic",
    "copies_mb",
    "modelled_ms",
    "roofline_ms",
    "scheduled_share",
    "host_transfers",
    "compile_s",
)
COPIED = ("program", "shape", "place", "times", "megabytes", "reason")
DEAREST = ("program", "ms", "megabytes", "times", "opcode", "op_name")
TREES = ("chip", "batch_size", "nodes", "modelled_ms", "ratio", "roofline_ms", "traffic")
EXCHANGED = ("program", "kind", "shape", "count", "megabytes")


def print_tables(settings: Any, found: dict[str, Any]) -> None:
    """Prints the programs, their large copies and dearest operations, and what devices exchange.

    Args:
      settings: of `eval.compile`.
      found: its report.
    """
    memory = found["chip"]["memory_bytes"]
    room = "" if memory is None else f" of {memory / 1e6:,.0f} MB"
    where = "one" if settings.mesh is None else f"{settings.mesh} of"
    title = f"{settings.shape}, method {settings.method}, on {where} {found['chip']['kind']}{room}"
    print_table(title, [_shown(row) for row in found["rows"]], COLUMNS)
    print_table("Copies of more than 4 MB", _listed(found["rows"], "copies"), COPIED)
    print_table("The dearest operations, in a call and in a step of decode", _listed(found["rows"], "dearest"), DEAREST)
    if settings.mesh is not None:
        exchanged = _listed(found["rows"], "collectives")
        print_table("What devices exchange in a call, and in a step of decode", exchanged, EXCHANGED)
    if "tree_times" in found:
        print_table("Modelled time of a step by nodes, over that of plain decoding", found["tree_times"], TREES)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    if not row["fits"] and "body_bytes" not in row:
        return row | {"fits": "no"}
    return row | {
        "fits": "yes" if row["fits"] else "no",
        "body_mb": row["body_bytes"] / 1e6,
        "ideal_mb": row["ideal_bytes"] / 1e6,
        "copies_mb": sum(x["bytes"] for x in row["copies"]) / 1e6,
    }


def _listed(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Returns the entries of a field of all programs, each with its program and its megabytes."""
    found = ({"program": row["program"]} | one for row in rows for one in row.get(name) or ())
    return [one | {"megabytes": one["bytes"] / 1e6} if "bytes" in one else one for one in found]
