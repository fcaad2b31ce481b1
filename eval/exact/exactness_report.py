"""What an exactness run says while it runs, what it adds up to, and what an earlier one left to go on with."""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.exact.exactness_rows import AS_IT_IS
from eval.exact.kept import NO_DRAFT_KEPT, no_draft_kept
from eval.reports.code_hashes import changed_files
from jax_smash.cli.resume import path_digest
from jax_smash.loading import sources
from jax_smash.methods.draft_options import INT8, SPARSE

MOST_DIVERGENCES = 5e-6
"""Divergences a token that rounding may cause in float32."""

SUMMED = (
    "prompts",
    "tokens",
    "divergences",
    "beyond_near_ties",
    "unexplained",
    "log_probs_differing",
    "finish_differing",
)

FREE_TO_CHANGE = (
    "json",
    "resume",
    "overwrite",
    "methods",
    "drafter",
    "trees",
    "batch_sizes",
    "processors",
    "choices",
    "checks",
    "equivalents",
    "faults",
)
"""Settings that choose rows, or do not bear on them."""


class Clock:
    """Says after each row what came of it and how long the rest may take."""

    def __init__(self, rows: int, *, prompts: int, max_new_tokens: int):
        """Says what is to be done and begins to count."""
        self.rows, self.done, self.began = rows, 0, time.perf_counter()
        say(f"{rows} rows of {prompts} prompts and at most {max_new_tokens} new tokens each, compiled one by one")

    def tick(self, row: dict[str, Any]) -> None:
        """Counts a row."""
        self.done += 1
        passed = time.perf_counter() - self.began
        say(
            f"{self.done} of {self.rows}: {' '.join(row['key'])}: {row['divergences']} of {row['prompts']} texts "
            f"diverge{'' if row['passed'] else ', NOT AS IT MUST BE'}{f', {NO_DRAFT_KEPT}' * no_draft_kept(row)}; "
            f"{passed / 60:.1f} minutes, about {passed / self.done * (self.rows - self.done) / 60:.1f} more"
        )


def totals(rows: Sequence[dict[str, Any]], dtype: str) -> dict[str, Any]:
    """Returns sums over drafted text as it is, and whether everything passed."""
    drafted = [row for row in rows if row["way"] == AS_IT_IS and row["method"] != "ar"]
    sums = {name: sum(row[name] for row in drafted) for name in SUMMED}
    allowed = math.ceil(MOST_DIVERGENCES * sums["tokens"]) if dtype == "float32" else None
    few = allowed is None or sums["divergences"] <= allowed
    return sums | {"divergences_allowed": allowed, "passed": few and all(row["passed"] for row in rows)}


def inputs_of(model: str, files: Sequence[Path | None], *, draft_model: str | None = None) -> dict[str, Any]:
    """Returns digests of what rows depend on and a report tells by its name alone.

    Args:
      model: that is measured.
      files: or folders that are read beside it; None for one that is not given.
      draft_model: as in `DraftOptions`.

    Raises:
      FileNotFoundError: there is no such model.
    """
    digests = [None if path is None else path_digest(path) for path in files]
    found = {"model": [path_digest(path) for path in sources(model)], "files": digests}
    if draft_model is None or draft_model == INT8 or draft_model.startswith(SPARSE):
        return found  # The model itself drafts, or none.
    return found | {"draft_model": [path_digest(path) for path in sources(draft_model)]}


def earlier_rows(
    path: Path,
    settings: dict[str, Any],
    *,
    inputs: dict[str, Any] | None = None,
    machine: Mapping[str, Any] | None = None,
    free: Sequence[str] = FREE_TO_CHANGE,
) -> list[dict[str, Any]]:
    """Returns the rows of a report that stands there; none where there is none.

    Args:
      path: of the report.
      settings: of this run.
      inputs: as `inputs_of` tells them, and the report under that name; None compares none.
      machine: heading of this run, whose device and versions must be the report's; None where rows hold no times.
      free: settings that may be others.

    Raises:
      ValueError: it is no report, or was made of other inputs, under settings that give other rows, by other code, or
        on another machine.
    """
    if not path.exists():
        return []
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        before, rows = dict(report["settings"]), list(report["rows"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no report that can be continued: {error!r}") from error
    for name, value in json.loads(json.dumps(settings)).items():
        if name not in free and before.get(name) != value:
            raise ValueError(f"{path} was made with {name} {before.get(name)!r}; got {value!r}")
    if inputs is not None and report.get("inputs") != inputs:
        raise ValueError(f"{path} was made with another model or other files: its rows are not continued")
    for what in ("device", "versions"):
        was, now = report.get(what, {}), (machine or {}).get(what, {})
        # Packages of peers alone are not in every run.
        names = [name for name in now if name in was or what == "device"]
        for name in (name for name in names if not name.endswith("_bytes") and was.get(name) != now[name]):
            raise ValueError(
                f"{path} was measured with {name} {was.get(name)!r}; got {now[name]!r}: its times are not continued"
            )
    if changed := changed_files(report.get("code", {})):
        raise ValueError(f"{path} was made by another {changed[0]}: its rows are not continued; name another file")
    return rows


def say(line: str) -> None:
    """Prints a line on standard error at once."""
    print(line, file=sys.stderr, flush=True)
