"""The planner's times on this machine: calibrated on one shape, tested on a model that it never saw.

    python -m eval.plan_times --json plan-times.json

A decode step is timed with trees of some nodes and with some batches, sizes interleaved, medians of several calls. Two
figures of the processor, its bandwidth and its operations a second, are chosen so that planned times of the first
shape fit best; with them the second model's are planned. The machine must have no other work.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from eval.chips.calibrated import calibrated, off_by, planned_seconds
from eval.reports.options import Numbers
from eval.reports.report import check_output, heading, print_table, progress, run_program, write_json
from jax_smash.checkpoints.adapter import with_base
from jax_smash.checkpoints.configuration import checkpoint_config, shape_config
from jax_smash.costs.curve import check_entries
from jax_smash.loading import Model, find, load, random_model
from jax_smash.planning.topology import host_chip
from jax_smash.serve.tuning import step_times

COLUMNS = ("role", "name", "batch_size", "nodes", "measured_ms", "planned_ms", "ratio", "spread")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Times decode steps beside planned ones.

    Attributes:
      calibrate: a preset, with random weights, on which the processor's figures are chosen.
      test: a model's name or a directory, on which they are tested.
      nodes: entries a row that a step reads, rising from 1.
      batch_sizes: rows that decode together.
      slots: of the cache a row, half of them filled.
      repeats: timed calls of each size; medians count.
      json: file to write.
      overwrite: replace the file if it exists.
    """

    calibrate: str = "llama-100m"
    test: str = "smollm2"
    nodes: Numbers = (1, 8, 16)
    batch_sizes: Numbers = (1, 8)
    slots: int = 1024
    repeats: int = 15
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be measured, before anything is loaded.

        Raises:
          ValueError: a number is out of range, nodes do not rise from 1, or a model is none.
          FileExistsError, FileNotFoundError: the output file cannot be written, or there is no such model.
        """
        check_entries(self.nodes)
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise ValueError(f"batch_sizes must be numbers of at least 1; got {self.batch_sizes}")
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1; got {self.repeats}")
        if self.slots < self.nodes[-1]:
            raise ValueError(f"slots must be at least the most nodes, {self.nodes[-1]}; got {self.slots}")
        check_output(self.json, overwrite=self.overwrite)
        self._check_models()

    def _check_models(self) -> None:
        tested, _ = with_base(find(self.test), find)
        for name, config in ((self.calibrate, shape_config(self.calibrate)), (self.test, checkpoint_config(tested))):
            if self.slots > config.max_positions:
                raise ValueError(
                    f"slots must be at most {config.max_positions}, the positions of {name}; got {self.slots}"
                )


def measure(settings: Settings) -> dict[str, Any]:
    """Returns the report without its heading.

    Raises:
      ValueError, FileExistsError, FileNotFoundError: as of `Settings.check`, or the model is none.
    """
    settings.check()
    models = {
        "calibrated": random_model(settings.calibrate, dtype=jnp.float32),
        "tested": load(settings.test, dtype=jnp.float32),
    }
    rows = [row for role, model in models.items() for row in timed(settings, role, model)]
    chip = calibrated(host_chip(), models["calibrated"].config, [x for x in rows if x["role"] == "calibrated"])
    for row in rows:
        seconds = planned_seconds(chip, models[row["role"]].config, row)
        row |= {"planned_ms": 1e3 * seconds, "ratio": row["measured_ms"] / (1e3 * seconds)}
    return {
        "processor": {"bandwidth": chip.bandwidth, "operations": chip.bf16_peak},
        "rows": rows,
        "off_by": {role: off_by([x["ratio"] for x in rows if x["role"] == role]) for role in models},
    }


def timed(settings: Settings, role: str, model: Model) -> list[dict[str, Any]]:
    """Returns a row for each batch and number of nodes, without what is planned.

    Args:
      settings: the program's.
      role: of the model.
      model: on one device.
    """
    rows = []
    for batch in settings.batch_sizes:
        with progress(f"{model.name}, batch {batch}", len(settings.nodes) * (settings.repeats + 1)) as advance:
            times = step_times(
                model,
                batch=batch,
                slots=settings.slots,
                entries=settings.nodes,
                repeats=settings.repeats,
                progress=lambda done, total, advance=advance: advance(),  # type: ignore[misc]
            )
        rows += [
            {
                "role": role,
                "name": model.name,
                "batch_size": batch,
                "nodes": nodes,
                "slots": settings.slots,
                "measured_ms": 1e3 * statistics.median(seconds),
                "spread": _spread(seconds),
            }
            for nodes, seconds in zip(settings.nodes, times, strict=True)
        ]
    return rows


def _spread(seconds: Sequence[float]) -> float:
    """Returns how wide the middle half of timings is, as a share of their median."""
    low, middle, high = np.quantile(seconds, [0.25, 0.5, 0.75])
    return float((high - low) / middle)


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Measures, prints a table and writes the report."""
    found = measure(settings)
    print_table("Milliseconds of a step, measured and planned", found["rows"], COLUMNS)
    told = statistics.median(row["ratio"] for row in found["rows"] if row["role"] == "tested")
    print(f"measured over planned, median of the tested model: {told:.2f}; off by {found['off_by']['tested']:.0%}")
    if settings.json is not None:
        write_json(settings.json, heading("eval.plan_times", arguments, dataclasses.asdict(settings)) | found)


if __name__ == "__main__":
    run_program(Settings, main)
