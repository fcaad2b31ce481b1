"""How many of the slots with most attention a set of chosen slots holds, beside recent and random slots."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

FIRST_LAYER = 1
"""The layer before it is read whole by every policy."""
FIRST_POSITION = 256
SINKS = 4


@dataclasses.dataclass(frozen=True)
class Recall:
    """What chosen slots hold of those with most attention, by layer and query head.

    Attributes:
      recall: of the layers from the first counted one on, 0 … 1; the mean over rows and queries.
      kept: share of the candidates that is chosen: so much of the truth a random choice holds.
    """

    recall: Float[np.ndarray, "L N"]
    kept: Float[np.ndarray, "L N"]


def selection_recall(
    probabilities: Float[np.ndarray, "L B N T S"],
    chosen: Bool[np.ndarray, "L B N T S"],
    position: Int[np.ndarray, "T"],
    *,
    budget: float | int = 0.5,
    first_layer: int = FIRST_LAYER,
    first_position: int = FIRST_POSITION,
    sinks: int = SINKS,
) -> Recall:
    """Returns |chosen ∩ top k| / k, where top k are the k candidates with most attention in the dense model.

    The candidates of a query at position p are the slots from `sinks` to p; slot s holds position s. Of equal
    probabilities the earlier slot ranks first. Counted are queries from `first_position` on in layers from
    `first_layer` on. A set that is larger than k may have a recall of 1 without merit: compare sets of equal `kept`.

    Source: TokenButler, section 4.1, top-k recall; with a budget of 0.5, Recall@50%.
    Differs: sinks, which every policy keeps, and short texts are left out.

    Args:
      probabilities: true attention of the dense model, by query head.
      chosen: slots that a policy reads; what it says of sinks and of slots behind the query is not looked at.
      position: of each query.
      budget: k, as a share of the candidates, rounded up, or as a number of slots, at most all candidates.
      first_layer, first_position, sinks: what is left out.

    Raises:
      ValueError: shapes differ, the budget is out of range, or nothing is left to count.
    """
    _check(probabilities, chosen, position, budget, sinks)
    counted = position >= first_position
    if first_layer >= len(probabilities) or not counted.any():
        raise ValueError(
            f"some query must be in a layer from {first_layer} on and at a position from {first_position} on; got "
            f"{len(probabilities)} layers and positions up to {position.max(initial=-1)}"
        )
    candidate = candidates(position, probabilities.shape[-1], sinks)[counted]
    count = candidate.sum(-1)
    k = np.ceil(budget * count).astype(int) if isinstance(budget, float) else np.minimum(budget, count)
    read = chosen[first_layer:, :, :, counted] & candidate
    top = _rank(probabilities[first_layer:, :, :, counted], candidate) < k[:, None]
    return Recall(recall=((read & top).sum(-1) / k).mean((1, 3)), kept=(read.sum(-1) / count).mean((1, 3)))


def recent_slots(
    chosen: Bool[np.ndarray, "L B N T S"], position: Int[np.ndarray, "T"], *, sinks: int = SINKS
) -> Bool[np.ndarray, "L B N T S"]:
    """Returns for each query as many candidates as are chosen, the latest ones: a control."""
    later = np.broadcast_to(np.arange(chosen.shape[-1], dtype=float), chosen.shape)
    return _as_many(chosen, later, candidates(position, chosen.shape[-1], sinks))


def random_slots(
    chosen: Bool[np.ndarray, "L B N T S"], position: Int[np.ndarray, "T"], *, seed: int, sinks: int = SINKS
) -> Bool[np.ndarray, "L B N T S"]:
    """Returns for each query as many candidates as are chosen, drawn at random: a control."""
    drawn = np.random.default_rng(seed).random(chosen.shape)
    return _as_many(chosen, drawn, candidates(position, chosen.shape[-1], sinks))


def candidates(position: Int[np.ndarray, "T"], slots: int, sinks: int) -> Bool[np.ndarray, "T S"]:
    """Marks the slots that a query sees, sinks left out."""
    slot = np.arange(slots)
    return (slot >= sinks) & (slot <= position[:, None])


def _as_many(
    chosen: Bool[np.ndarray, "L B N T S"], score: Float[np.ndarray, "L B N T S"], candidate: Bool[np.ndarray, "T S"]
) -> Bool[np.ndarray, "L B N T S"]:
    return candidate & (_rank(score, candidate) < (chosen & candidate).sum(-1, keepdims=True))


def _rank(score: Float[np.ndarray, "L B N T S"], candidate: Bool[np.ndarray, "T S"]) -> Int[np.ndarray, "L B N T S"]:
    """Returns each slot's place among the candidates, 0 for the highest score; others come behind them."""
    order = np.argsort(np.where(candidate, -score, np.inf), axis=-1, kind="stable")
    return np.argsort(order, axis=-1, kind="stable")


def _check(
    probabilities: Float[np.ndarray, "L B N T S"],
    chosen: Bool[np.ndarray, "L B N T S"],
    position: Int[np.ndarray, "T"],
    budget: float | int,
    sinks: int,
) -> None:
    if probabilities.shape != chosen.shape or probabilities.ndim != 5:
        raise ValueError(
            f"probabilities and chosen must both be [L, B, N, T, S]; got {probabilities.shape} and {chosen.shape}"
        )
    if position.shape != probabilities.shape[3:4]:
        raise ValueError(
            f"position must be one for each of {probabilities.shape[3]} queries; got shape {position.shape}"
        )
    if not (0 < budget <= 1 if isinstance(budget, float) else budget >= 1):
        raise ValueError(f"budget must be a share above 0 and at most 1.0, or slots from 1 on; got {budget}")
    if not 0 <= sinks <= position.min(initial=sinks):
        raise ValueError(f"every query must stand at or behind the {sinks} sinks; got position {position.min()}")
