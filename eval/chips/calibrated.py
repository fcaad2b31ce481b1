"""A processor's bandwidth and operations a second, by which planned steps take about as long as measured ones."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jax_smash.chips import Chip
from jax_smash.config import ModelConfig
from jax_smash.planning.planner import Plan
from jax_smash.planning.question import Question
from jax_smash.planning.topology import HOST, parse_topology
from jax_smash.planning.work import Part, seconds

BANDWIDTHS, PEAKS = np.geomspace(1e9, 1e12, 301), np.geomspace(1e9, 1e14, 501)
"""Bytes and operations a second among which the best are looked for: 2.3% apart."""


def planned_parts(config: ModelConfig, row: Mapping[str, Any]) -> list[Part]:
    """Returns the parts of a step over some entries a row, in float32.

    Args:
      config: the model's sizes.
      row: with `batch_size`, `nodes` and `slots`.
    """
    batch, slots = row["batch_size"], row["slots"]
    question = Question(config, parse_topology(HOST), dtype="float32", batch=batch, context=slots)
    return Plan(question).step(nodes=row["nodes"])


def planned_seconds(chip: Chip, config: ModelConfig, row: Mapping[str, Any]) -> float:
    """Returns the planned time of a step.

    Args:
      chip: the processor.
      config, row: as of `planned_parts`.
    """
    return seconds(planned_parts(config, row), chip)


def calibrated(chip: Chip, config: ModelConfig, rows: Sequence[Mapping[str, Any]]) -> Chip:
    """Returns a processor with the bandwidth and the operations a second that fit measured steps best.

    Best is the least sum of squares of the logarithms of measured over planned times.

    Args:
      chip: the processor, as it is taken to be.
      config: sizes of the model that was measured.
      rows: as of `planned_parts`, with `measured_ms`.
    """
    errors = np.zeros((len(BANDWIDTHS), len(PEAKS)))
    together = np.maximum if chip.overlaps else np.add  # As in `Part.seconds`.
    for row in rows:
        parts = planned_parts(config, row)
        by_memory = np.array([part.bytes for part in parts]) / BANDWIDTHS[:, None]
        by_operations = np.array([part.operations for part in parts]) / PEAKS[:, None]
        planned = together(by_memory[:, None], by_operations[None]).sum(-1)
        errors += np.log(row["measured_ms"] / 1e3 / planned) ** 2
    i, j = np.unravel_index(errors.argmin(), errors.shape)
    peak = float(PEAKS[j])
    return dataclasses.replace(chip, bandwidth=float(BANDWIDTHS[i]), bf16_peak=peak, int8_peak=peak, f32_share=1.0)


def off_by(ratios: Sequence[float]) -> float:
    """Returns how far the farthest of some ratios is from one, as a share of the smaller of the two times."""
    return max(max(ratio, 1 / ratio) for ratio in ratios) - 1
