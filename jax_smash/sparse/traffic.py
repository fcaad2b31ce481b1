"""What a decode step reads under a policy: weights, slots of the cache, and what the slots are chosen by."""

import dataclasses
from typing import Any

import numpy as np

from jax_smash.config import ModelConfig
from jax_smash.models.predictors import abstract_predictor, without_predictor
from jax_smash.plan import step_bytes, tree_bytes
from jax_smash.protocols import SparsePolicy
from jax_smash.quantise import activation_dtype
from jax_smash.sparse.learned import Learned
from jax_smash.sparse.selecting import Selecting
from jax_smash.sparse.streaming import StreamingLLM


@dataclasses.dataclass(frozen=True)
class SparseStepBytes:
    """Bytes that one decode step reads from memory.

    Attributes:
      weights: as in `plan.StepBytes`.
      cache: keys and values of the slots that are read.
      scorer: what slots are chosen by: keys, bounds of pages, sums, what a predictor keeps.
      dense_cache: keys and values that would be read without the policy.
      predictor: weights of a trained predictor.
    """

    weights: int
    cache: int
    scorer: int
    dense_cache: int
    predictor: int = 0

    @property
    def total(self) -> int:
        """All that a step reads under the policy."""
        return self.weights + self.cache + self.scorer + self.predictor

    @property
    def bound(self) -> float:
        """How many times faster a step may be than without the policy, if memory alone decides."""
        return (self.weights + self.dense_cache) / self.total

    @property
    def cache_bound(self) -> float:
        """The same of the cache alone, without any weights."""
        return self.dense_cache / max(self.cache + self.scorer, 1)


def sparse_step_bytes(
    config: ModelConfig, params: Any, policy: SparsePolicy, *, batch: int, slots: int
) -> SparseStepBytes:
    """Returns what one decode step reads of a cache in which every row holds `slots` slots.

    Args:
      config: the model's sizes.
      params: the target's parameters, or their abstract shapes.
      policy: of the cache; one with a trained predictor must know its sizes, as from `described`.
      batch: rows.
      slots: that every row holds.

    Raises:
      ValueError: nobody has told the sizes of the predictor.
    """
    params, own = without_predictor(params)
    dense = step_bytes(config, params, batch=batch, slots=slots)
    if isinstance(policy, StreamingLLM):
        kept = step_bytes(config, params, batch=batch, slots=min(slots, policy.slots))
        return SparseStepBytes(weights=dense.weights, cache=kept.cache, scorer=0, dense_cache=dense.cache)
    if not isinstance(policy, Selecting):
        return SparseStepBytes(weights=dense.weights, cache=dense.cache, scorer=0, dense_cache=dense.cache)
    size = np.dtype(activation_dtype(params)).itemsize
    slot = 2 * config.head_width * size
    cache, scorer, predictor = dense.cache, 0, 0
    plans = policy.plans(config, slots)
    if isinstance(policy, Learned) and any(plans):
        scorer = batch * policy.beside_bytes(slots, size)
        predictor = tree_bytes(own or abstract_predictor(policy.sizes, activation_dtype(params))[1])
    for plan in plans:
        if plan is None:
            continue
        shares = plan.by_head or (1.0,) * config.held_kv_heads
        read = sum(int(np.clip(np.ceil(plan.slots * share), plan.least, plan.slots)) for share in shares)
        cache -= batch * slot * (config.held_kv_heads * slots - read)
        scorer += batch * policy.scorer_bytes(config, slots, size)
    return SparseStepBytes(
        weights=dense.weights, cache=cache, scorer=scorer, dense_cache=dense.cache, predictor=predictor
    )
