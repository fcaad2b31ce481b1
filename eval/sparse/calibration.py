"""Budgets a head for a policy, by the recall of its choices on texts of their own."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from eval.sparse.choice_recall import choices_seen
from eval.sparse.truth import held_of_top
from eval.tasks.selection import FIRST_POSITION
from jax_smash.loading import Model
from jax_smash.sparse.calibrate import LEAST_KEPT, calibrated_shares


def head_recall(
    model: Model,
    tokens: Int[np.ndarray, "B T"],
    *,
    share: float,
    batch_size: int,
    prompt: int = FIRST_POSITION,
) -> Float[np.ndarray, "L K"]:
    """Returns the recall of each KV head's choices, the mean over its query heads and all steps behind the prompt.

    Args:
      model: from `sparsified`, whose policy has its budget.
      tokens: of texts of equal length.
      share: of the slots: those with most attention that count.
      batch_size: texts that are read together.
      prompt: first tokens, which are read at once.

    Returns:
      NaN in layers that are read whole.

    Raises:
      ValueError: no layer chooses.
    """
    found = choices_seen(model, held_of_top(share), tokens, prompt=prompt, batch_size=batch_size)
    if found is None:
        raise ValueError(f"{model.name} reads whole texts of {tokens.shape[1]} tokens: no head can be calibrated")
    assert model.config is not None
    table = np.full((model.config.num_layers, model.config.num_kv_heads), np.nan)
    for layer, held in found.items():
        by_head = np.asarray(held.by_head, np.float64).mean((0, 1))
        table[layer] = by_head.reshape(table.shape[1], -1).mean(1)
    return table


def shares_by_recall(recall: Float[np.ndarray, "L K"], share: float) -> Float[np.ndarray, "L K"]:
    """Returns `calibrated_shares` of the layers that choose; the others, which are read whole, keep the mean."""
    choosing = ~np.isnan(recall).any(1)
    shares = np.full(recall.shape, share)
    shares[choosing] = calibrated_shares(recall[choosing], share, least=min(LEAST_KEPT, share))
    return shares


def as_tokens(texts: Any, length: int) -> Int[np.ndarray, "B T"]:
    """Returns the first tokens of texts as an array.

    Raises:
      ValueError: a text is too short.
    """
    for text in texts:
        if len(text) < length:
            raise ValueError(f"every text must have at least {length} tokens; got {len(text)}")
    return np.asarray([text[:length] for text in texts], np.int32)
