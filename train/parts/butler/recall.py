"""How much of what a base attends to most a predictor would have kept."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jax_smash.threshold import mark_highest

SINKS = 4
"""First entries of a text that are kept in any case, and left out here."""


def recall(
    truth: Float[Array, "B K G Q S"],
    scores: Float[Array, "B K X Q S"],
    candidates: Bool[Array, "B Q S"],
    share: float,
) -> tuple[Float[Array, "B Q"], Float[Array, "B Q"]]:
    """Returns the recall of each query, mean over heads, and 1 where anything was to be kept.

    Formula: |top k by scores ∩ top k by truth| / k, k = ⌊share · candidates⌋. Of equal scores the first count as
    higher, so that a predictor without an opinion gains nothing by it.

    Args:
      truth: what the base attends to.
      scores: predicted, for each query head (X = G) or one set for a group (X = 1).
      candidates: what may be chosen.
      share: of the candidates.
    """
    count = jnp.floor(candidates.sum(-1).astype(jnp.float32) * jnp.float32(share))
    few = count[:, None, None].astype(jnp.int32)
    kept, chosen = (mark_highest(x, candidates[:, None, None], few) for x in (truth, scores))
    both = (kept & chosen).sum(-1).astype(jnp.float32).mean((1, 2))
    return both / jnp.maximum(count, 1), (count > 0).astype(jnp.float32)
