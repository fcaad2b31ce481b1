"""Reports that are kept with the project: what each says of itself, and whether its code has changed since."""

import dataclasses
import fnmatch
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.reports.code_at import code_at
from eval.reports.code_hashes import ROOT, changed_files
from eval.reports.told_paths import told, told_arguments, told_setting

FOLDER = ROOT / "docs" / "results"
NEEDED = ("command", "device", "versions", "commit", "settings")
"""What every report begins with."""


@dataclasses.dataclass(frozen=True)
class Report:
    """A report.

    Attributes:
      name: of its file, without the ending.
      content: what stands in it.
    """

    name: str
    content: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        """Returns one entry of the content."""
        return self.content[key]

    @property
    def program(self) -> str:
        """The module that made it, as in eval.speed."""
        return self["command"].split()[2]

    @property
    def settings(self) -> Mapping[str, Any]:
        """Options that it was made with."""
        return self["settings"]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its rows, each with the options of the whole run and its own settings beside its figures.

        Not every row of a run takes the tree that it was asked for, so a row's tree is its own or none.
        """
        shared = {name: value for name, value in self.settings.items() if name != "tree"}
        return [{**shared, **_own(row), **row, "report": self.name} for row in self.content.get("rows", [])]

    @property
    def complete(self) -> bool:
        """Whether all rows that were asked for are there; a report that does not tell is taken to have them."""
        return self.content.get("complete", True)

    @property
    def device(self) -> str:
        """What it was measured on, in words."""
        device = self["device"]
        if device["platform"] == "cpu":
            return f"{device['host_cores']} cores of {device['host_processor']}"
        count = f"{device['count']} × " if device["count"] > 1 else ""
        return f"{count}{device['kind']}"

    @property
    def commit(self) -> str:
        """The commit, and whether files differed from it."""
        commit = self["commit"]
        if commit is None:
            return "no commit"
        return f"`{commit['hash'][:7]}`" + (", dirty (files differed from the commit)" if commit["dirty"] else "")

    @property
    def size(self) -> str:
        """How much was measured: prompts, questions, repeats."""
        return SIZES.get(self.program, lambda r: "")(self)

    @property
    def seed(self) -> str:
        """Seed of what was drawn; decoding is greedy where no temperature is told."""
        # A study has temperatures of its own where none are asked for.
        heats = [*(self.settings.get("temperatures") or ()), *(row.get("temperature") for row in self.rows)]
        sampled = any(heats) or "sampled" in (self.settings.get("choices") or ())
        seed = self.settings.get("seed")
        told = "" if seed is None else f"seed {seed}"
        return told if sampled or self.program not in GREEDY else ", ".join(x for x in ("greedy", told) if x)

    def changed(self, root: Path = ROOT) -> list[str] | None:
        """Returns the files of its code that have changed since; None where it does not name its code."""
        code = self.content.get("code")
        return None if code is None else changed_files(code, root)


SIZES = {
    "eval.acceptance": lambda r: f"{r['questions']} questions, {r.settings['max_new_tokens']} tokens each at most",
    "eval.speed": lambda r: (
        f"{len(r['prompt_tokens'])} prompts, {r.settings['max_new_tokens']} tokens each, "
        f"{r.settings['repeats']} repeats"
    ),
    "eval.by_task": lambda r: (
        f"{sum(len(task['prompts']) for task in r['tasks'])} prompts of {len(r['tasks'])} tasks, "
        f"{r.settings['max_new_tokens']} tokens each at most, repeats: {r.settings['repeats']}"
    ),
    "eval.exactness": lambda r: f"{r.settings['num_prompts']} prompts, {r.settings['max_new_tokens']} tokens each",
    "eval.drift": lambda r: f"{r.settings['new_tokens']} tokens each",
    "eval.kernels": lambda r: f"{r.settings['repeats']} repeats of {r.settings['calls']} calls",
    "eval.group_caps": lambda r: "arithmetic",
    "eval.parity": lambda r: f"{r.settings['draws']} draws",
    "eval.invariance": lambda r: f"{r.settings['draws']} draws",
}
"""Of each program, how much a report measured; examples of quality are counted row by row."""

GREEDY = ("eval.acceptance", "eval.by_task", "eval.speed", "eval.quality", "eval.drift", "eval.exactness")
"""Programs that decode; they take the likeliest token unless a temperature is told."""


def read_report(path: Path) -> Report:
    """Reads a report.

    Raises:
      ValueError: it is none.
      OSError: it cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} must be a report in JSON; {error}") from error
    missing = [key for key in NEEDED if not isinstance(content, dict) or key not in content]
    if missing:
        raise ValueError(f"{path.name} must be a report of a program of eval; it lacks {', '.join(missing)}")
    return Report(path.stem, content)


def read_reports(folder: Path = FOLDER) -> dict[str, Report]:
    """Returns all reports of a folder by name, sorted.

    Raises:
      ValueError, OSError: as of `read_report`.
    """
    return {path.stem: read_report(path) for path in sorted(folder.glob("*.json"))}


def matching(reports: Mapping[str, Report], patterns: Sequence[str]) -> list[Report]:
    """Returns the reports whose names match one of some patterns (`*` stands for anything), in the patterns' order."""
    names = [name for pattern in patterns for name in reports if fnmatch.fnmatchcase(name, pattern)]
    return [reports[name] for name in dict.fromkeys(names)]


def adopted(path: Path, root: Path = ROOT) -> dict[str, Any]:
    """Returns a report as it is kept: without paths of a machine, and with the hashes of its code.

    A report that does not name its code is given that of its commit: see `code_at`. One whose files differed from the
    commit stays without.

    Raises:
      ValueError, OSError: as of `read_report`.
    """
    report = read_report(path)
    content = dict(report.content)
    content["command"] = " ".join(told_arguments(content["command"].split(" ")))
    content["settings"] = {name: told_setting(name, value) for name, value in report.settings.items()}
    content = told(content)
    commit = content["commit"]
    if "code" not in content and commit is not None and not commit["dirty"]:
        content["code"] = code_at(commit["hash"], report.program, root)
    return content


def unused(reports: Iterable[str], used: Iterable[str]) -> list[str]:
    """Returns the names of reports that nothing is made of."""
    return sorted(set(reports) - set(used))


def _own(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a row's own settings, where these are told together."""
    settings = row.get("settings")
    return settings if isinstance(settings, Mapping) else {}
