"""Modelled time of a step by the nodes of its tree, T(m)/T(1), by chip and batch."""

import dataclasses
import sys
from collections.abc import Callable, Iterable
from typing import Any

from jax_smash.methods import OPTIONS

DRAFTS = "recycling"
"""The method whose trees are compared where the one asked for drafts none."""


def node_counts(sizes: Iterable[int]) -> list[int]:
    """Returns the numbers of nodes to compile, in order and each once; plain decoding, 1, is among them.

    Raises:
      ValueError: one is below 1.
    """
    counts = sorted({1, *sizes})
    if counts[0] < 1:
        raise ValueError(f"tree_sizes must be at least 1, which is the root alone; got {counts[0]}")
    return counts


def tree_times(settings: Any, rows: Callable[[Any], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Returns a row for each chip, batch and number of nodes.

    From a tree on whose step does not fit a chip's memory, those of its batch are left out; a line on standard error
    names it.

    Args:
      settings: of `eval.compile`.
      rows: compiles the programs of such settings and returns their figures.

    Raises:
      ValueError: not one step fits.
    """
    found, refused = [], []
    for chip in settings.chips or (settings.chip,):
        for batch in settings.batch_sizes or (settings.batch_size,):
            fitting, beyond = _of_chip(dataclasses.replace(settings, chip=chip, batch_size=batch), rows)
            found += fitting
            if beyond is not None:
                refused.append(f"decode does not fit {chip} with {batch} rows and {beyond} nodes")
    if not found:
        raise ValueError(refused[0])
    for line in refused:
        print(f"{line}; larger trees are left out too", file=sys.stderr, flush=True)
    return found


def _of_chip(settings: Any, rows: Callable[[Any], list[dict[str, Any]]]) -> tuple[list[dict[str, Any]], int | None]:
    """Returns the rows of a chip and batch, and the nodes of the first tree that does not fit; None where all do."""
    found: list[dict[str, Any]] = []
    for nodes in node_counts(settings.tree_sizes):
        (row,) = rows(_with_tree(settings, nodes))
        if "modelled_ms" not in row:
            return found, nodes
        plain = found[0]["modelled_ms"] if found else row["modelled_ms"]
        found.append(
            {
                "chip": settings.chip,
                "batch_size": settings.batch_size,
                "nodes": nodes,
                "ratio": row["modelled_ms"] / plain,
            }
            | {name: row[name] for name in ("modelled_ms", "roofline_ms", "body_bytes", "ideal_bytes", "traffic")}
        )
    return found, None


def _with_tree(settings: Any, nodes: int) -> Any:
    """Returns the settings for a step with a tree of so many nodes; with one it is plain decoding."""
    drafts = settings.method if settings.method in OPTIONS else DRAFTS
    chosen = {"method": "ar", "tree": "auto"} if nodes == 1 else {"method": drafts, "tree": f"tree-{nodes - 1}"}
    beside = {} if chosen["method"] == "draft-model" else {"draft_model": None}
    return dataclasses.replace(settings, programs=("decode",), smash_mode=None, **chosen, **beside)
