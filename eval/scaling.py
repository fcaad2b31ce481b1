"""Modelled decoding on more and more chips, with as many rows for each chip, collectives included.

    python -m eval.scaling --shape llama-3.1-8b --json scaling.json --plot scaling.png
    python -m eval.scaling --shape llama-3.1-8b --compile --json scaling.json

Times are those of `jax-smash plan`, by the data sheets' bandwidths, links among them: the least that a step takes.
With `--compile`, two layers are compiled for the best mesh of each slice, and what devices send in a step of the
compiled program stands beside what the plan counts.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from eval.chips.plan_cases import Case
from eval.reports.options import Names
from eval.reports.report import check_outputs, heading, print_table, run_program, write_json, write_whole
from jax_smash.cli.plan import sizes
from jax_smash.planning.topology import check_compiler, parse_topology

SLICES = ("v5e:2x2", "v5e:2x4", "v5e:4x4", "v5e:4x8", "v5e:8x8")
COLUMNS = ("chip", "mesh", "batch", "total_mb", "step_ms", "links_ms", "tokens_a_second", "efficiency")
SENT = ("device", "mesh", "batch", "layers", "sent_mb", "planned_sent_mb")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Plans a model's decoding on several slices.

    Attributes:
      shape: a preset's name, or a model as `jax-smash plan` takes it.
      chips: slices, the smallest first.
      rows: that decode together, for each chip.
      context: slots of the cache a row, taken to be full.
      dtype: of weights and cache.
      weights: int8 holds matrices as 8-bit integers.
      compile: also compile two layers for the best meshes, and compare what devices send.
      plot: picture to write, a PNG file.
      json: file to write.
      overwrite: replace files that exist.
    """

    shape: str = "llama-3.1-8b"
    chips: Names = SLICES
    rows: int = 8
    context: int = 4096
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    weights: Literal["plain", "int8"] = "plain"
    compile: bool = False
    plot: Path | None = None
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be planned.

        Raises:
          ValueError: a slice is unknown or there is none, slices do not grow, a number is out of range, or the shape is
            none.
          ImportError: what draws pictures is missing, or with `compile` the compiler for TPUs.
          FileExistsError, FileNotFoundError: an output file cannot be written, or there is no such model.
        """
        for name in ("rows", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        counts = [parse_topology(chip).devices for chip in self.chips]
        if not counts or any(a >= b for a, b in itertools.pairwise(counts)):
            raise ValueError(f"chips must be slices that grow; got {', '.join(self.chips) or 'none'}")
        if self.compile and any(parse_topology(chip).is_tpu for chip in self.chips):
            check_compiler()
        check_outputs(self.json, plot=self.plot, overwrite=self.overwrite)
        if self.context > (most := sizes(self.shape).max_positions):
            raise ValueError(f"context must be at most the {most} positions of {self.shape}; got {self.context}")

    @property
    def case(self) -> Case:
        """The model, whole."""
        return Case(self.shape, "", None, 1, self.context, None, weights=self.weights, dtype=self.dtype)


def measure(settings: Settings) -> dict[str, Any]:
    """Returns the report without its heading.

    Raises:
      ValueError, ImportError, OSError: as of `Settings.check`, or nothing fits the first slice.
    """
    from eval.chips.scaled import held_against, scaled  # matplotlib takes a second to import.

    settings.check()
    rows = scaled(settings.case, settings.chips, settings.rows)
    return {"rows": rows} | ({"compiled": held_against(settings.case, rows)} if settings.compile else {})


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Plans, prints a table and writes the report."""
    jax.config.update("jax_platforms", "cpu")
    found = measure(settings)
    title = f"{settings.shape}, {settings.rows} rows a chip, modelled"
    best = [row for row in found["rows"] if row["best"]]
    print_table(f"{title}, by the best mesh of each slice", best, COLUMNS)
    if settings.compile:
        print_table("What a device sends in a step", found["compiled"], SENT)
    if settings.plot is not None:
        from eval.chips.scaled import plot_scaled

        write_whole(settings.plot, plot_scaled(found["rows"], title=title))
    if settings.json is not None:
        write_json(settings.json, heading("eval.scaling", arguments, dataclasses.asdict(settings)) | found)


if __name__ == "__main__":
    run_program(Settings, main, compilation_cache=False)
