"""From which length on it pays to read chosen slots, and not all of them."""

import dataclasses
from typing import Any

import jax
import numpy as np

from jax_smash import cpu
from jax_smash.config import ModelConfig
from jax_smash.costs.estimate import known_roofline
from jax_smash.loading import Model
from jax_smash.protocols import SparsePolicy
from jax_smash.quantise import activation_dtype
from jax_smash.sparse.learned import Learned
from jax_smash.sparse.predictors import described
from jax_smash.sparse.selecting import Selecting
from jax_smash.sparse.traffic import predictor_bytes

STEP = 64
"""Lengths are looked at in steps of so many slots."""


@dataclasses.dataclass(frozen=True)
class ChoiceCosts:
    """What a step takes that chooses its slots, beside one that reads all of them in order.

    Attributes:
      seconds: of a layer, however long the texts: the choice's operations are launched one after another.
      row_seconds: of a layer and row, likewise: what is not done for all rows at once.
      gathered: bytes of chosen slots, in bytes that are read in order.
      scored: bytes that slots are chosen by, likewise.
      ranked: bytes that each slot or page that a KV head chooses among counts for.
      bytes_per_second: read in order.
    """

    seconds: float
    row_seconds: float
    gathered: float
    scored: float
    ranked: float
    bytes_per_second: float


MODELLED_SECONDS = 10e-6
"""Of a layer's choice on an accelerator: about five operations. A score is written once and read once, 8 bytes."""

UNKNOWN_BYTES_PER_SECOND = 1e12
"""Of a device that nothing is known of."""


def choice_costs(kind: str | None = None) -> ChoiceCosts:
    """Returns what a choice of slots costs: on a CPU as measured, elsewhere modelled.

    Args:
      kind: of the device, as JAX names it; None takes the first device's.
    """
    kind = jax.devices()[0].device_kind if kind is None else kind
    if kind == "cpu":
        return ChoiceCosts(
            seconds=0.0,
            row_seconds=cpu.CHOICE_SECONDS,
            gathered=cpu.GATHERED,
            scored=cpu.SCORED,
            ranked=cpu.RANKED,
            bytes_per_second=cpu.CACHE_BYTES_PER_SECOND,
        )
    found = known_roofline(kind)
    speed = UNKNOWN_BYTES_PER_SECOND if found is None else found.bytes_per_second
    return ChoiceCosts(
        seconds=MODELLED_SECONDS, row_seconds=0.0, gathered=1.0, scored=1.0, ranked=8.0, bytes_per_second=speed
    )


def pays_from(
    policy: Selecting, config: ModelConfig, params: Any, *, batch: int, costs: ChoiceCosts | None = None
) -> int:
    """Returns the slots from which on a step is faster that reads the slots that a policy chooses.

    In each of the L layers that choose::

      seconds + B · row_seconds
      + (predictor / L + B · (gathered · chosen + scored · (scorer + beside / L) + ranked · candidates)) / speed
      < B · all / speed

    A predictor's weights are read once for all rows. What is kept beside its keys is read once a row.

    Args:
      policy: of the cache; one with a trained predictor must know its sizes.
      config: the model's sizes.
      params: the target's parameters, or their abstract shapes.
      batch: B, rows that decode together.
      costs: of the choice; None takes the device's.

    Returns:
      From 0 to the model's `max_positions`, where it never pays; 0 for a policy that must know of every choice.

    Raises:
      ValueError: nobody has told the sizes of the predictor.
    """
    if policy.remembers:
        return 0
    costs = choice_costs() if costs is None else costs
    size = np.dtype(activation_dtype(params)).itemsize
    slot = 2 * config.held_kv_heads * config.head_width * size
    layers = max(sum(kind == "full" for kind in config.layer_kinds[policy.dense_layers :]), 1)
    predictor = predictor_bytes(policy, params) / layers
    for slots in range(STEP, config.max_positions, STEP):
        wanted = policy.budget if isinstance(policy.budget, int) else int(np.ceil(policy.budget * slots))
        read = min(max(wanted, policy.least), slots) * slot
        scorer = policy.scorer_bytes(config, slots, size) + policy.beside_bytes(slots, size) / layers
        taken = costs.gathered * read + costs.scored * scorer
        taken += costs.ranked * config.held_kv_heads * -(-slots // policy.page_size)
        fixed = (costs.seconds + batch * costs.row_seconds) * costs.bytes_per_second + predictor
        if fixed < batch * (slots * slot - taken):
            return slots
    return config.max_positions


def paying(policy: SparsePolicy, model: Model, *, batch: int) -> SparsePolicy:
    """Returns a policy that reads the whole cache while that is faster, with `pays_from` for a model on this device.

    A policy that says itself from where it chooses stays as it is, and so does one that chooses no slots.

    Args:
      policy: of the cache; of a trained predictor the description alone is read.
      model: that is loaded.
      batch: rows that decode together.

    Raises:
      FileNotFoundError: a predictor is missing.
      ValueError: it does not fit the model.
    """
    if model.config is None or not isinstance(policy, Selecting) or policy.pays_from:
        return policy
    if isinstance(policy, Learned) and policy.predictor is None:
        policy = described(policy, model.name, model.config)
    known = pays_from(policy, model.config, model.params["target"], batch=batch)
    return dataclasses.replace(policy, pays_from=known)
