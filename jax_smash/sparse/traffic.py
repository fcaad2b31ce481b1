"""What a decode step reads under a policy: weights, slots of the cache, and what the slots are chosen by."""

import dataclasses
from typing import Any

import numpy as np

from jax_smash.cache import LayerPlan
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
    given, (params, _) = params, without_predictor(params)
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
    if any(plans):
        scorer = batch * policy.beside_bytes(slots, size)
        predictor = predictor_bytes(policy, given)
    for plan in plans:
        if plan is None:
            continue
        read = sum(_slots_read(plan, slots, config.held_kv_heads, policy.page_size))
        cache -= batch * slot * (config.held_kv_heads * slots - read)
        scorer += batch * policy.scorer_bytes(config, slots, size)
    return SparseStepBytes(
        weights=dense.weights, cache=cache, scorer=scorer, dense_cache=dense.cache, predictor=predictor
    )


def predictor_bytes(policy: SparsePolicy, params: Any) -> int:
    """Returns the bytes of the weights of a policy's predictor; 0 without one.

    Args:
      policy: one with a trained predictor must know its sizes.
      params: the target's parameters, or their abstract shapes; the predictor's may be among them.

    Raises:
      ValueError: nobody has told the sizes of the predictor.
    """
    if not isinstance(policy, Learned):
        return 0
    base, own = without_predictor(params)
    return tree_bytes(own or abstract_predictor(policy.sizes, activation_dtype(base))[1])


def _slots_read(plan: LayerPlan, slots: int, kv_heads: int, page_size: int) -> list[int]:
    """Returns the slots that each KV head reads of a row: whole pages within `LayerPlan.limit`."""
    limit = np.float32(plan.slots)
    if plan.share is not None:
        limit = np.ceil(np.float32(slots) * np.float32(plan.share))
    by_head = np.ceil(limit * np.asarray(plan.by_head or (1.0,) * kv_heads, np.float32))
    return [int(n) // page_size * page_size for n in np.clip(by_head, plan.least, plan.slots)]
