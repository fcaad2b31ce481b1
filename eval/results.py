"""Makes docs/results.md, its pictures, docs/support.md and the numbers of the README from the reports in docs/results.

    python -m eval.results --check
    python -m eval.results --write
    python -m eval.results --add smollm2-speed-b1=speed.json --write

`--check` says which of these files are not what the reports say, and ends with status 1 where one is. That a report is
older than its code is shown on the page and is no fault. A claim, with its table, is declared in
`eval/reports/claims/catalogue.py`.
"""

import dataclasses
import re
from pathlib import Path

from eval.reports.claims.catalogue import CLAIMS, FIGURES
from eval.reports.claims.claim import Claim, Figure
from eval.reports.claims.marks import filled
from eval.reports.claims.page import page, without_age
from eval.reports.claims.stored import adopted, read_reports, unused
from eval.reports.claims.support import support_page
from eval.reports.code_hashes import ROOT
from eval.reports.options import NamedPaths
from eval.reports.report import as_json, run_program, write_whole
from jax_smash.methods import REACH

MARKED = ("README.md",)
"""Pages that may name results within their own text."""

NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Makes or checks the pages of results.

    Attributes:
      check: say which files differ from what the reports say.
      write: write them.
      add: reports to keep under docs/results first, as NAME=FILE.
      overwrite: an added report may replace one.
    """

    check: bool = False
    write: bool = False
    add: NamedPaths = ()
    overwrite: bool = False

    def verify(self) -> None:
        """Refuses options that ask for nothing, and reports that cannot be kept.

        Raises:
          ValueError: nothing is asked for, or a name is malformed.
          OSError: a report is there already, or a file cannot be read.
        """
        if self.check == self.write and not (self.add and not self.check):
            raise ValueError("give --check, --write or --add; --check and --write exclude each other")
        for given in self.add:
            name, equals, file = given.partition("=")
            if not (equals and file and NAME.fullmatch(name)):
                raise ValueError(f"add must be NAME=FILE, the name of a-z, 0-9, . and -; got {given!r}")
            if not Path(file).is_file():
                raise FileNotFoundError(f"report does not exist: {file}")


def text_files(
    root: Path = ROOT, claims: tuple[Claim, ...] = CLAIMS, figures: tuple[Figure, ...] = FIGURES
) -> dict[str, str]:
    """Returns what each page must hold, by its path from the root.

    Raises:
      ValueError: a report is malformed, or a mark of a page cannot be filled.
      OSError: a page cannot be read.
    """
    reports = read_reports(root / "docs" / "results")
    made = {"docs/results.md": page(claims, reports), "docs/support.md": support_page(reports, tuple(REACH))}
    return made | {name: filled((root / name).read_text(), claims, figures, reports) for name in MARKED}


def pictures(root: Path = ROOT, claims: tuple[Claim, ...] = CLAIMS) -> dict[str, bytes]:
    """Returns the picture of each claim that has one and has reports, by its path from the root."""
    reports = read_reports(root / "docs" / "results")
    made = {}
    for claim in claims:
        if claim.picture is not None and (found := claim.sources(reports)):
            made[f"docs/results/{claim.name}.png"] = claim.picture(claim.rows(found))
    return made


def faults(root: Path = ROOT, claims: tuple[Claim, ...] = CLAIMS, figures: tuple[Figure, ...] = FIGURES) -> list[str]:
    """Returns a line for each file that is not what the reports say.

    Pictures are only asked to be there: other versions of matplotlib draw other bytes.

    Raises:
      ValueError, OSError: as of `text_files`.
    """
    found = []
    for name, text in text_files(root, claims, figures).items():
        path = root / name
        if not path.is_file():
            found.append(f"{name} is missing")
        elif without_age(path.read_text()) != without_age(text):
            found.append(f"{name} differs from what the reports say")
    reports = read_reports(root / "docs" / "results")
    drawn = {c.name for c in claims if c.picture is not None and c.sources(reports)}
    there = {path.stem for path in (root / "docs" / "results").glob("*.png")}
    found += [f"docs/results/{name}.png is missing" for name in sorted(drawn - there)]
    found += [f"docs/results/{name}.png belongs to no claim" for name in sorted(there - drawn)]
    used = [r.name for c in claims for r in c.sources(reports)] + [f.report for f in figures]
    found += [f"docs/results/{name}.json belongs to no claim" for name in unused(reports, used)]
    return found


def add(settings: Settings, root: Path = ROOT) -> None:
    """Keeps the named reports.

    Raises:
      ValueError, OSError: one is no report, or stands there already.
    """
    found: dict[Path, dict] = {}
    for given in settings.add:
        name, _, file = given.partition("=")
        path = root / "docs" / "results" / f"{name}.json"
        if path.exists() and not settings.overwrite:
            raise FileExistsError(f"report exists: {path.relative_to(root)} (--overwrite replaces it)")
        found[path] = adopted(Path(file), root)
    for path, content in found.items():
        write_whole(path, as_json(content))


def main(settings: Settings, root: Path = ROOT) -> int:
    """Adds reports, then writes or checks; returns 1 where a check finds a fault."""
    settings.verify()
    add(settings, root)
    if settings.write:
        files = {name: text.encode() for name, text in text_files(root).items()} | pictures(root)
        for name, content in files.items():
            write_whole(root / name, content)
        for path in (root / "docs" / "results").glob("*.png"):
            if path.relative_to(root).as_posix() not in files:
                path.unlink()
    if settings.check:
        for line in (found := faults(root)):
            print(line)
        return int(bool(found))
    return 0


if __name__ == "__main__":
    run_program(Settings, main)
