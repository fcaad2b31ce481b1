"""What each KV head may read of a budget, by how well its slots are chosen on a calibration set."""

import json
from pathlib import Path

import numpy as np
from jaxtyping import Float

LEAST_KEPT = 0.05
"""Share of a text that a head is left at least."""

_TOLERANCE = 1e-9


def calibrated_shares(
    recall: Float[np.ndarray, "L K"], mean: float, *, least: float = LEAST_KEPT
) -> Float[np.ndarray, "L K"]:
    """Returns the share of a text that each KV head of each layer may read: the more, the lower its recall is.

    share(rank r of n) ∝ 1 − r / (n − 1) · (1 − mean),  rank 0 for the lowest recall

    The shares are scaled to the mean and clamped to [least, 1]; what clamping takes or gives is shared among the others
    until the mean is right. Of equal recalls the earlier head ranks first.

    Args:
      recall: of each KV head's choices, 0 … 1.
      mean: of the shares, over 0 and at most 1.
      least: that a head may read.

    Raises:
      ValueError: a recall is no number, there is no head, or `mean` or `least` is out of range.

    Source: Akhauri et al. 2025, "TokenButler", section 4.5 (calibrated sparsity).
    Differs: by KV head, whose query heads share a set of slots.
    """
    if recall.ndim != 2 or not recall.size or not np.isfinite(recall).all():
        raise ValueError(f"recall must be a number for each layer and KV head; got an array of shape {recall.shape}")
    if not 0 < mean <= 1:
        raise ValueError(f"mean must be over 0 and at most 1; got {mean}")
    if not 0 < least <= mean:
        raise ValueError(f"least must be over 0 and at most the mean of {mean}; got {least}")
    rank = np.empty(recall.size)
    rank[np.argsort(recall.ravel(), kind="stable")] = np.arange(recall.size)
    wanted = 1 - rank / max(recall.size - 1, 1) * (1 - mean)
    return _scaled(wanted, mean, least).reshape(recall.shape)


def save_shares(path: Path, shares: Float[np.ndarray, "L K"], **told: object) -> None:
    """Writes shares as JSON: a list a layer, a number a KV head.

    Args:
      path: of the file.
      shares: from `calibrated_shares`.
      told: what they were found with, to stand beside them.

    Raises:
      OSError: it cannot be written.
    """
    kept = {"shares": shares.tolist(), "mean": float(shares.mean())} | told
    path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def load_shares(path: Path) -> tuple[tuple[float, ...], ...]:
    """Returns `head_shares` for a policy from a file of `save_shares`: the largest share is 1, a whole budget.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it holds no shares.
    """
    if not path.is_file():
        raise FileNotFoundError(f"file of shares does not exist: {path}")
    try:
        shares = np.asarray(json.loads(path.read_text(encoding="utf-8"))["shares"], np.float64)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read as shares of heads: {error!r}") from error
    if shares.ndim != 2 or not shares.size or not ((shares > 0) & (shares <= 1)).all():
        raise ValueError(f"{path} must hold shares over 0 and at most 1, a list a layer, as long as each other")
    return tuple(tuple(float(share) for share in layer) for layer in shares / shares.max())


def _scaled(wanted: np.ndarray, mean: float, least: float) -> np.ndarray:
    """Returns numbers in proportion to `wanted` and from `least` to 1, with a mean."""
    low, high = 0.0, 1 / wanted.min()
    while high - low > _TOLERANCE * high:  # The mean of what is clamped grows with the factor.
        factor = (low + high) / 2
        low, high = (factor, high) if np.clip(factor * wanted, least, 1).mean() < mean else (low, factor)
    return np.clip(high * wanted, least, 1)
