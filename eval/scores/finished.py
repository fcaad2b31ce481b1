"""Tasks that a run of `eval.quality` has finished, kept in a file until its report is written."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.reports.code_hashes import changed_files, code_hashes
from eval.scores.intervals import Interval
from eval.scores.paired import COMPARES
from eval.scores.smashing import Compression
from eval.tasks.outcome import Outcome
from jax_smash.cli.program_options import is_program

_NAMES = {compare: name for name, compare in COMPARES.items()}


class Finished:
    """A file of JSON lines: first what the run is, then a line for each set of examples that one contender was asked.

    The file is made when the first set is finished. A line that was cut off is dropped, and its set asked again.

    Attributes:
      path: of the file.
    """

    def __init__(self, path: Path, run: Mapping[str, Any], *, resume: bool, same_code: bool = False):
        """Reads what an earlier run has finished, where it is to go on; writes nothing.

        Args:
          path: of the file.
          run: what the outcomes depend on, in JSON's types; an earlier run's must be equal.
          resume: go on from the file, if there is one; else it is replaced.
          same_code: outcomes are kept with the hashes of their code, which must not have changed.

        Raises:
          ValueError: the file is of another run or of other code, or no such file.
          OSError: it cannot be read.
        """
        self.path, self._run = path, json.loads(json.dumps(run))
        self._found: dict[str, list[Outcome]] = {}
        self._size = 0
        self._same_code, self._code = same_code, dict[str, str]()
        if resume and path.exists():
            self._read(path.read_bytes())

    def get(self, contender: Mapping[str, Any], number: int) -> list[Outcome] | None:
        """Returns the outcomes of a contender's set of examples, by the set's number; None where it is not finished."""
        return self._found.get(_key(contender, number))

    def add(self, contender: Mapping[str, Any], number: int, outcomes: Sequence[Outcome]) -> None:
        """Keeps the outcomes of a set.

        Raises:
          OSError: they cannot be written.
        """
        lines = [] if self._size else [{"run": self._run}]
        line = {"set": _key(contender, number), "outcomes": [_written(outcome) for outcome in outcomes]}
        # A set may import further files; each is told once.
        code = {k: v for k, v in code_hashes().items() if k not in self._code} if self._same_code else {}
        lines.append(line | ({"code": code} if code else {}))
        content = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)
        with open(self.path, "r+b" if self._size else "wb") as file:
            file.truncate(self._size)  # What was cut off.
            file.seek(self._size)
            file.write(content)
        self._size += len(content)
        self._code |= code

    def _read(self, content: bytes) -> None:
        whole = content[: content.rfind(b"\n") + 1]
        if not whole:
            return
        try:
            begun, *lines = (json.loads(line) for line in whole.splitlines())
            run = begun["run"]
            found = {line["set"]: [_outcome(fields) for fields in line["outcomes"]] for line in lines}
            code = {name: digest for line in lines for name, digest in line.get("code", {}).items()}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path} cannot be read as finished tasks: {error!r}") from error
        for name in sorted(run.keys() | self._run.keys()):
            if run.get(name) != self._run.get(name):
                raise ValueError(
                    f"{self.path} was begun with {name} {_short(run.get(name))}; got {_short(self._run.get(name))}: "
                    "resume as it was begun, or start again with --overwrite"
                )
        if self._same_code and (changed := changed_files(code)):
            raise ValueError(
                f"{self.path} was begun by another {changed[0]}: its tasks are not kept; start again with --overwrite"
            )
        self._found, self._size, self._code = found, len(whole), code


def file_states(*paths: Path) -> dict[str, list[int]]:
    """Returns the size in bytes and the time of the last change, in nanoseconds, of files and of all files in folders.

    What does not exist is left out, and compiled programs that are kept there.
    """
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    counted = [file for file in files if file.is_file() and not is_program(file)]
    return {str(file): [file.stat().st_size, file.stat().st_mtime_ns] for file in counted}


def _key(contender: Mapping[str, Any], number: int) -> str:
    return json.dumps([contender, number], sort_keys=True)


def _written(outcome: Outcome) -> dict[str, Any]:
    fields = {f.name: getattr(outcome, f.name) for f in dataclasses.fields(outcome)}
    interval = outcome.interval and dataclasses.asdict(outcome.interval)
    compression = dataclasses.asdict(outcome.compression)
    return fields | {"compare": _NAMES[outcome.compare], "interval": interval, "compression": compression}


def _outcome(fields: dict[str, Any]) -> Outcome:
    interval = fields["interval"] and Interval(**fields["interval"])
    compression = Compression(**fields["compression"])
    return Outcome(
        **fields | {"compare": COMPARES[fields["compare"]], "interval": interval, "compression": compression}
    )


def _short(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 200 else f"of hash {hashlib.sha256(shown.encode()).hexdigest()[:12]}"
