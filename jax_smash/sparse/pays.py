"""From which length on it pays to read chosen slots, and not all of them."""

import dataclasses
from typing import Any

import jax
import numpy as np

from jax_smash import cpu
from jax_smash.config import ModelConfig
from jax_smash.costs.estimate import known_roofline
from jax_smash.quantise import activation_dtype
from jax_smash.sparse.selecting import Selecting

STEP = 64
"""Lengths are looked at in steps of so many slots."""


@dataclasses.dataclass(frozen=True)
class ChoiceCosts:
    """What a step takes that chooses its slots, beside one that reads all of them in order.

    Attributes:
      seconds: of a layer, however long the text: the choice's operations are launched one after another.
      gathered: bytes of chosen slots, in bytes that are read in order.
      scored: bytes that slots are chosen by, likewise.
      ranked: bytes that each slot or page that a KV head chooses among counts for.
      bytes_per_second: read in order.
    """

    seconds: float
    gathered: float
    scored: float
    ranked: float
    bytes_per_second: float


MODELLED_SECONDS = 10e-6
"""Of a layer's choice on an accelerator: about five operations. A score is written and read, 8 bytes."""

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
            seconds=cpu.CHOICE_SECONDS,
            gathered=cpu.GATHERED,
            scored=cpu.SCORED,
            ranked=cpu.RANKED,
            bytes_per_second=cpu.CACHE_BYTES_PER_SECOND,
        )
    found = known_roofline(kind)
    speed = UNKNOWN_BYTES_PER_SECOND if found is None else found.bytes_per_second
    return ChoiceCosts(seconds=MODELLED_SECONDS, gathered=1.0, scored=1.0, ranked=8.0, bytes_per_second=speed)


def pays_from(
    policy: Selecting, config: ModelConfig, params: Any, *, batch: int, costs: ChoiceCosts | None = None
) -> int:
    """Returns the slots from which on a step is faster that reads the slots that a policy chooses.

    seconds + B · (gathered · chosen + scored · scorer + ranked · candidates) / speed < B · all / speed

    Args:
      policy: of the cache.
      config: the model's sizes.
      params: the target's parameters, or their abstract shapes.
      batch: B, rows that decode together.
      costs: of the choice; None takes the device's.

    Returns:
      From 0 to the model's `max_positions`, where it never pays; 0 for a policy that must know of every choice.
    """
    if policy.remembers:
        return 0
    costs = choice_costs() if costs is None else costs
    size = np.dtype(activation_dtype(params)).itemsize
    slot = 2 * config.held_kv_heads * config.head_width * size
    for slots in range(STEP, config.max_positions, STEP):
        wanted = policy.budget if isinstance(policy.budget, int) else int(np.ceil(policy.budget * slots))
        read = min(max(wanted, policy.least), slots) * slot
        taken = costs.gathered * read + costs.scored * policy.scorer_bytes(config, slots, size)
        taken += costs.ranked * config.held_kv_heads * -(-slots // policy.page_size)
        if costs.seconds * costs.bytes_per_second < batch * (slots * slot - taken):
            return slots
    return config.max_positions
