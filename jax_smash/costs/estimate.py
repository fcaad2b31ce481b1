"""What a step costs by arithmetic, where nothing was measured."""

import dataclasses
from typing import Any

import jax
import numpy as np

from jax_smash.chips import CHIPS
from jax_smash.config import ModelConfig
from jax_smash.costs.curve import CostCurve
from jax_smash.costs.store import cores
from jax_smash.plan import step_bytes
from jax_smash.quantise import activation_dtype


@dataclasses.dataclass(frozen=True)
class Roofline:
    """What a device can do at most.

    Attributes:
      bytes_per_second: read from memory.
      operations_per_second: of products in 16 bits; in 32 bits half as many are counted, but as many on a CPU.
    """

    bytes_per_second: float
    operations_per_second: float


ROOFLINES = {chip.kind: Roofline(chip.device.bandwidth, chip.device.bf16_peak) for chip in CHIPS.values()}
"""Data-sheet figures of dense products by a part of the device's kind; the first that fits counts."""

FREE_ROWS = 64
"""Rows that cost a usual accelerator as much again as reading the weights."""

CPU = "cpu"
CPU_BYTES_PER_SECOND = 50e9
CPU_OPERATIONS_PER_CORE = 5e9
"""Of products of a few rows, as small drafts are, in float32: 5 to 9 GFLOP/s a core were seen at 2 to 16 rows of a
model of 5M parameters, 14 at 81, and 38 at 64 rows of one of 100M. The least is taken: an unmeasured CPU should not
draft where it does not pay."""


def estimate_costs(
    config: ModelConfig, params: Any, *, batch: int, slots: int, most: int, kind: str | None = None
) -> CostCurve | None:
    """Estimates a cost curve from what a step must read and multiply, as if neither hid the other.

    Real steps are slower, on most devices by about the same factor at every size: what is chosen by this curve is
    chosen by its form, and a measured one (`jax-smash tune`) is better.

    Args:
      config: the model's sizes.
      params: the target's parameters, or their abstract shapes.
      batch: rows.
      slots: cache slots a row that a step reads.
      most: the curve reaches this many entries.
      kind: of the device, as JAX names it; None takes the first device's.

    Returns:
      None where nothing is known of the device.
    """
    kind = jax.devices()[0].device_kind if kind is None else kind
    roofline = known_roofline(kind)
    if roofline is None:
        return None
    read = step_bytes(config, params, batch=batch, slots=slots)
    wide = np.dtype(activation_dtype(params)).itemsize > 2 and kind != CPU
    speed = roofline.operations_per_second / (2 if wide else 1)
    operations = 2 * batch * (_multiplied(config, params) + _attended(config, slots))
    entries = _points(most)
    seconds = [read.total / roofline.bytes_per_second + m * operations / speed for m in entries]
    return CostCurve(
        entries=entries,
        seconds=tuple(seconds),
        batch=batch,
        slots=slots,
        source=f"estimated from the roofline of {kind}; jax-smash tune measures it",
        measured=False,
    )


def assumed_costs(*, batch: int, slots: int, most: int) -> CostCurve:
    """Returns a curve to begin with where nothing is known of a device or a model: that of a usual accelerator.

    Args:
      batch: rows.
      slots: cache slots a row that a step reads.
      most: the curve reaches this many entries.
    """
    entries = _points(most)
    return CostCurve(
        entries=entries,
        # In plain steps: only the ratios matter.
        seconds=tuple(1.0 + (m - 1) / FREE_ROWS for m in entries),
        batch=batch,
        slots=slots,
        source="assumed, for nothing is known of this device; jax-smash tune measures it",
        measured=False,
    )


def _points(most: int) -> tuple[int, ...]:
    return tuple(sorted({*(2**i for i in range(most.bit_length()) if 2**i <= most), most}))


def _multiplied(config: ModelConfig, params: Any) -> int:
    """Returns the weights that an entry is multiplied with: all, but of an untied embedding one row is read."""
    weights = sum(x.size for x in jax.tree.leaves(params))
    embedding = sum(x.size for x in jax.tree.leaves(params["embedding"]))
    return weights - (0 if config.tied_head else embedding)


def _attended(config: ModelConfig, slots: int) -> int:
    seen = sum(min(slots, config.window) if kind == "sliding" else slots for kind in config.layer_kinds)
    return 2 * seen * config.num_heads * config.head_width


def known_roofline(kind: str) -> Roofline | None:
    """Returns what a kind of device can do, as JAX names it; None where nothing is known of it."""
    if kind == CPU:
        return Roofline(CPU_BYTES_PER_SECOND, CPU_OPERATIONS_PER_CORE * cores())
    return next((found for part, found in ROOFLINES.items() if part in kind), None)
