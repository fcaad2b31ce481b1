"""How much query heads agree on the slots with most attention: of a group, of a layer, from layer to layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from eval.scores.intervals import ratio_bootstrap
from eval.sparse.top_sets import top_sets
from eval.tasks.selection import FIRST_LAYER, SINKS
from jax_smash.loading import Model

Sets = Bool[np.ndarray, "X Q S"]


def agreement(
    model: Model, tokens: Sequence[Sequence[int]], *, share: float, first: int
) -> tuple[list[dict[str, Any]], Float[np.ndarray, "L L"]]:
    """Returns the overlap of top sets by who they belong to, and that of the heads of each two layers.

    overlap(a, b) = Σ over queries of |a ∩ b| / Σ over queries of k

    Layers from 1 on count. The overlap of two random sets stands beside them as `chance`.

    Args:
      model: a dense one.
      tokens: texts of equal length.
      share: of the slots that a set has.
      first: position of the first query.

    Returns:
      Rows, each with a 95% interval over texts, and the mean overlap of each two layers' heads over all texts; on its
      diagonal that of different heads of a layer.

    Raises:
      ValueError: as of `top_sets`.

    Source: TokenButler, appendix C, cross-head agreement.
    Differs: overlap of sets in place of the correlation of logits.
    """
    assert model.config is not None
    config, by_text, tables = model.config, [], []
    for by_head, _ in top_sets(model, tokens, share=share, first=first):
        layers, heads = by_head.shape[:2]
        table = overlap(by_head.reshape(layers * heads, *by_head.shape[2:]))
        layer = np.repeat(np.arange(layers), heads)
        group = np.tile(np.arange(heads) // (heads // config.num_kv_heads), layers)
        same, counted = layer[:, None] == layer[None], (layer >= FIRST_LAYER)[:, None] & (layer >= FIRST_LAYER)[None]
        alike = group[:, None] == group[None]
        kinds = {
            "heads of a group": counted & same & alike & ~np.eye(len(layer), dtype=bool),
            "groups of a layer": counted & same & ~alike,
            "neighbouring layers": counted & (np.abs(layer[:, None] - layer[None]) == 1),
            "all layers": counted & ~same,
        }
        found = {kind: float(table[mask].mean()) if mask.any() else None for kind, mask in kinds.items()}
        by_text.append(found | {"chance": chance(by_head, first)})
        np.fill_diagonal(table, np.nan)
        cells = table.reshape(layers, heads, layers, heads).transpose(0, 2, 1, 3).reshape(layers, layers, -1)
        tables.append(_mean(cells))
    rows = [row_of(kind, [found[kind] for found in by_text]) for kind in by_text[0] if by_text[0][kind] is not None]
    return rows, np.mean(tables, axis=0)


def overlap(sets: Sets, others: Sets | None = None) -> Float[np.ndarray, "X Y"]:
    """Returns what share of each set lies in each other one, over all queries together."""
    flat = sets.reshape(len(sets), -1).astype(np.float32)
    other = flat if others is None else others.reshape(len(others), -1).astype(np.float32)
    return flat @ other.T / np.maximum(flat.sum(1), 1)[:, None]


def chance(by_head: Bool[np.ndarray, "L N Q S"], first: int) -> float:
    """Returns the overlap that two random sets of these sizes would have."""
    count = by_head[0, 0].sum(-1).astype(float)
    among = first + np.arange(len(count)) - SINKS
    return float((count * count / among).sum() / count.sum())


def row_of(kind: str, scores: Sequence[float]) -> dict[str, Any]:
    """Returns the row of one kind of overlap, a score a text."""
    interval = ratio_bootstrap(scores, [1] * len(scores))
    bounds = None if interval is None else {"low": interval.low, "high": interval.high}
    return {"kind": kind, "n": len(scores), "score": sum(scores) / len(scores), "interval": bounds}


def _mean(cells: Float[np.ndarray, "L L X"]) -> Float[np.ndarray, "L L"]:
    """Returns the mean of each cell's numbers; 0 where there is none."""
    there = ~np.isnan(cells)
    return np.where(there, cells, 0).sum(-1) / np.maximum(there.sum(-1), 1)
