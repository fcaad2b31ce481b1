"""Chooses the settings that HAMburger's modules decode with by default, and writes them into the modules' folder.

    python -m eval.calibrate --model DIR --confidence 0.5,0.7,0.9 --token-confidence 0.9,0.99,0.995 --json OUT

Every setting answers the same questions as plain decoding does. Of those that lose at most `most-lost` points in each
set of questions, the one with the most tokens a slot is chosen; where none does, nothing is written. Questions are
drawn by a seed of their own, so that `eval.quality` with its usual one measures the choice on others.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval import quality
from eval.reports.options import Decimals, NamedPaths, Names, Numbers
from eval.reports.report import check_output, heading, print_table, run_program, write_json
from eval.scores.quality_settings import HAMBURGER
from eval.tasks.totals import ALL
from jax_smash.checkpoints.smasher import describe_smasher
from jax_smash.loading import find_modules, load
from jax_smash.smash.options import CALIBRATED, SmashOptions

COLUMNS = (
    "smash_mode",
    "confidence",
    "token_confidence",
    "score",
    "most_lost",
    "lost_in",
    "output_compression",
    "chosen",
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Chooses settings and writes them.

    Attributes:
      model: a shipped model's name, a directory or a hub id.
      modules: folder of the modules; by default the one beside the model.
      tasks: with answers that are right or wrong, as of `eval.quality`.
      data: examples of a task from elsewhere, likewise.
      lengths: of recall examples, in the model's tokens.
      count: questions of each set.
      seed: of drawn questions.
      chat: ask in the model's chat template.
      confidence, token_confidence: each of the one is tried with each of the other.
      smash_mode, micro_steps, micro_head: of hamburger, as in `jax-smash generate`; written along.
      most_lost: points of right answers that a setting may lose to plain decoding, in any set of questions.
      batch_size: questions that are answered together.
      dry: only measure; write no settings.
      json: file to write what was measured to.
      overwrite: replace the file if it exists.
    """

    model: str = "tiny"
    modules: str | None = None
    tasks: Names = ("recall",)
    data: NamedPaths = ()
    lengths: Numbers = (128,)
    count: int = 200
    seed: int = 1
    chat: bool = False
    confidence: Decimals = (0.5, 0.7, 0.9)
    token_confidence: Decimals = (0.9, 0.99, 0.995)
    smash_mode: str = "blind"
    micro_steps: int | None = None
    micro_head: str = "full"
    most_lost: float = 5.0
    batch_size: int = 8
    dry: bool = False
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what `eval.quality` does not.

        Raises:
          ValueError: an option is out of range, or names nothing.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        if not 0 <= self.most_lost <= 100:
            raise ValueError(f"most_lost must be from 0 to 100 points; got {self.most_lost}")
        for name in ("confidence", "token_confidence"):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one; got none")
        check_output(self.json, overwrite=self.overwrite)

    def measured(self) -> quality.Settings:
        """Returns the options of the program that measures."""
        names = {f.name for f in dataclasses.fields(quality.Settings)} & {f.name for f in dataclasses.fields(self)}
        same = {name: getattr(self, name) for name in names - {"json", "overwrite", "modules"}}
        return quality.Settings(**same, methods=("ar", HAMBURGER), modules=(self.modules,) if self.modules else ())


def candidates(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a row for each setting: right answers over all questions, and the set of questions that lost most.

    Args:
      rows: of a quality report, of plain decoding and of HAMburger.

    Raises:
      ValueError: the questions are not such that answers are right or wrong.
    """
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["method"] == HAMBURGER:
            if row["metric"] != "accuracy" or "output_compression" not in row:
                raise ValueError(f"tasks must have answers that the model writes, right or wrong; got {row['task']}")
            found.setdefault(tuple(row["settings"].get(name) for name in _told()), []).append(row)
    return [dict(zip(_told(), key, strict=True)) | _lost(sets) for key, sets in found.items()]


def choice(tried: Sequence[dict[str, Any]], most_lost: float) -> dict[str, Any]:
    """Returns the row with the most tokens a slot among those that lose little enough.

    Raises:
      ValueError: all lose more.
    """
    sound = [row for row in tried if row["most_lost"] <= most_lost]
    if not sound:
        best = min(tried, key=lambda row: row["most_lost"])
        raise ValueError(
            f"every setting loses more than {most_lost:g} points somewhere; the best, confidence {best['confidence']} "
            f"and token_confidence {best['token_confidence']}, loses {best['most_lost']:.1f} in {best['lost_in']}: "
            f"nothing is written"
        )
    return max(sound, key=lambda row: row["output_compression"])


def _told() -> tuple[str, ...]:
    return tuple("smash_mode" if name == "mode" else name for name in CALIBRATED)


def _lost(sets: Sequence[dict[str, Any]]) -> dict[str, Any]:
    parts = [row for row in sets if row["task"] != ALL]
    whole = next((row for row in sets if row["task"] == ALL), parts[0])
    worst = min(parts, key=lambda row: row["difference"]["value"])
    length = worst["settings"].get("length")
    return {
        "score": whole["score"],
        "n": whole["n"],
        "most_lost": -100 * worst["difference"]["value"],
        "lost_in": worst["task"] if length is None else f"{worst['task']}, length {length}",
        "output_compression": whole["output_compression"],
    }


def calibrate(settings: Settings) -> dict[str, Any]:
    """Measures, chooses and writes; returns the report without its heading.

    Raises:
      ValueError: an option, an example or the modules are wrong, or every setting loses too much.
      OSError: a file cannot be read or written.
    """
    settings.check()
    folder = find_modules(settings.model, settings.modules or "auto")
    rows = quality.measure(settings.measured())[0]["rows"]
    tried = candidates(rows)
    chosen = choice(tried, settings.most_lost)
    tried = [row | {"chosen": "yes" if row is chosen else ""} for row in tried]
    own = {name: chosen[told] for name, told in zip(CALIBRATED, _told(), strict=True)}
    if not settings.dry:
        base = load(settings.model, modules=folder).fingerprint
        describe_smasher(folder, options=SmashOptions(**own), base_fingerprint=base)
    return {"model": settings.model, "options": own, "written": not settings.dry, "settings_tried": tried, "rows": rows}


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Calibrates, prints a table and writes the report."""
    found = calibrate(settings)
    report = heading("eval.calibrate", arguments, dataclasses.asdict(settings)) | found
    print_table(f"{settings.model}: HAMburger's settings", found["settings_tried"], COLUMNS)
    if settings.json is not None:
        write_json(settings.json, report)


if __name__ == "__main__":
    run_program(Settings, main)
