"""Plans beside what compilers say of the same programs: memory of a device, and what devices send each other.

    python -m eval.plans --json plans.json
    python -m eval.plans --cases 8b-v6e,70b-v5p
    python -m eval.plans --cases 8b-v6e-whole,70b-v5p-whole,405b-v5e-whole

The programs are those of `jax-smash plan` for truncated shapes, compiled for their chips; nothing is allocated or run.
Whole shapes take minutes each.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from eval.chips.plan_cases import CASES, HERE, WHOLE, figures
from eval.reports.options import Names
from eval.reports.report import check_output, heading, print_table, progress, run_program, write_json
from jax_smash.planning.topology import check_compiler, parse_topology

KNOWN = CASES | WHOLE | HERE
COLUMNS = ("case", "argument_mb", "prefill_mb", "planned_prefill_mb", "decode_mb", "planned_decode_mb")
TOTALS = ("case", "total_mb", "planned_total_mb", "ratio", "sent_mb", "planned_sent_mb", "compile_s")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Compiles planned programs and compares.

    Attributes:
      cases: by name; by default all truncated shapes.
      json: file to write.
      overwrite: replace the file if it exists.
    """

    cases: Names = tuple(CASES)
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be compared, before anything is compiled.

        Raises:
          ValueError: a case is unknown, or there is none.
          ImportError: a case is for TPUs, and their compiler is missing.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        if unknown := [name for name in self.cases or ("",) if name not in KNOWN]:
            raise ValueError(f"cases must be of {', '.join(KNOWN)}; got {unknown[0]!r}")
        if any(parse_topology(KNOWN[name].device).is_tpu for name in self.cases):
            check_compiler()
        check_output(self.json, overwrite=self.overwrite)


def measure(settings: Settings) -> dict[str, Any]:
    """Returns a row for each case, and the ratio of planned to compiled bytes that is farthest from one.

    Raises:
      ValueError, ImportError, FileExistsError, FileNotFoundError: as of `Settings.check`.
      ValueError, MemoryError: as of `compiled_programs`.
    """
    settings.check()
    rows = []
    with progress("compiling", len(settings.cases)) as advance:
        for name in settings.cases:
            rows.append({"case": name} | figures(KNOWN[name]))
            advance()
    return {"rows": rows, "farthest": max((row["ratio"] for row in rows), key=lambda ratio: abs(ratio - 1))}


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Compiles, prints tables and writes the report."""
    # The chips are compiled for, not looked for.
    jax.config.update("jax_platforms", "cpu")
    found = measure(settings)
    needs = "Bytes of a device: arguments, and what a piece of the prompts and a step need beside"
    print_table(needs, found["rows"], COLUMNS)
    print_table("Bytes of a device in all, and what it sends in a step", found["rows"], TOTALS)
    if settings.json is not None:
        write_json(settings.json, heading("eval.plans", arguments, dataclasses.asdict(settings)) | found)


if __name__ == "__main__":
    run_program(Settings, main, compilation_cache=False)
