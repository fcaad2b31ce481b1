"""How long the slots with most attention stay the same, and whether earlier layers know them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from eval.sparse.agreement import chance, row_of
from eval.sparse.top_sets import top_sets
from eval.tasks.selection import FIRST_LAYER
from jax_smash.loading import Model


def look_ahead(
    model: Model, tokens: Sequence[Sequence[int]], *, share: float, first: int, steps: Sequence[int]
) -> list[dict[str, Any]]:
    """Returns what share of a query head's top set is in that of some steps before, or in the set of a layer.

    held(t, n) = |top(t) ∩ top(t − n)| / |top(t)|

    A layer's set has the slots with most attention of all its heads together: of the layer itself, which is the most
    that heads which share a set can have; of the layer before; of the first layer. Layers from 1 on count.

    Args:
      model: a dense one.
      tokens: texts of equal length.
      share: of the slots that a set has.
      first: position of the first query.
      steps: n.

    Returns:
      Rows, each with a 95% interval over texts; `chance` is the share that a random set would hold.

    Raises:
      ValueError: as of `top_sets`, or a text has too few queries for the steps.

    Source: TokenButler, appendix C, figure 12: the choices of the first and of the previous layer.
    """
    by_text: list[dict[str, float]] = []
    for by_head, by_layer in top_sets(model, tokens, share=share, first=first):
        if max(steps) >= by_head.shape[2]:
            raise ValueError(f"steps must be fewer than the {by_head.shape[2]} queries of a text; got {max(steps)}")
        own = by_head[FIRST_LAYER:]
        found = {f"{n} steps before": _held(own[:, :, n:], own[:, :, :-n]) for n in steps}
        found["own layer"] = _held(own, by_layer[FIRST_LAYER:, None])
        found["previous layer"] = _held(own, by_layer[FIRST_LAYER - 1 : -1, None])
        found["first layer"] = _held(own, by_layer[:1, None])
        by_text.append(found | {"chance": chance(by_head, first)})
    return [row_of(kind, [found[kind] for found in by_text]) for kind in by_text[0]]


def _held(sets: Bool[np.ndarray, "L N Q S"], guides: Bool[np.ndarray, "..."]) -> float:
    return float((sets & guides).sum() / max(int(sets.sum()), 1))
