"""How fast this version decodes beside an earlier commit, both running in turn.

    python -m eval.against HEAD~1 --model smollm2 --batch-sizes 1,8 --json against.json

Each version has a process of its own, which loads the model once. They decode the same prompts in turn, so that a
machine that slows down slows both alike. The seconds are those of whole calls of `generate`, prefill included.
"""

import contextlib
import dataclasses
import json as json_format
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from eval.reports.options import Names, Numbers
from eval.reports.report import ROOT, check_output, heading, print_table, progress, run_program, write_json
from eval.scores.intervals import ratio_bootstrap
from jax_smash.serve.prompts import read_prompts

PROMPTS = Path(__file__).parent / "prompts" / "stories.jsonl"
SIDE = Path(__file__).parent / "timing" / "against_side.py"
RANDOM_PROMPT_TOKENS, RANDOM_VOCABULARY = 64, 4000
COLUMNS = ("method", "batch_size", "pairs", "before_s", "now_s", "speed", "low", "high", "same_text")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Compares this version's speed with an earlier commit's.

    Attributes:
      commit: to compare with, as git names it.
      model: a shipped model's name, a directory or a hub id.
      random_init: a preset's name, in place of a model: a real shape with random weights.
      dtype: of the weights.
      methods: by name.
      tree: that methods which draft are given; by default their own.
      temperature: of sampling; 0 is greedy.
      batch_sizes: prompts that decode together.
      max_new_tokens: of each prompt.
      pairs: measurements of each case by each version, one after the other.
      settle_seconds: pause before each measurement.
      json: file to write.
      overwrite: replace the file if it exists.
    """

    commit: Annotated[str, tyro.conf.Positional]
    model: str | None = None
    random_init: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    methods: Names = ("ar",)
    tree: str | None = None
    temperature: float = 0.0
    batch_sizes: Numbers = (1,)
    max_new_tokens: int = 64
    pairs: int = 9
    settle_seconds: float = 0.1
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be measured, before anything is loaded.

        Raises:
          ValueError: an option is out of range.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        if (self.model is None) == (self.random_init is None):
            raise ValueError("give a model, or a shape with --random-init")
        if self.pairs < 2:
            raise ValueError(f"pairs must be at least 2; got {self.pairs}")
        if self.max_new_tokens < 1 or not self.batch_sizes or min(self.batch_sizes) < 1:
            raise ValueError(f"tokens and rows must be at least 1; got {self.max_new_tokens} and {self.batch_sizes}")
        check_output(self.json, overwrite=self.overwrite)

    def cases(self) -> list[dict[str, Any]]:
        """Returns what is measured: each method at each batch size."""
        return [{"method": m, "batch_size": b} for m in self.methods for b in self.batch_sizes]


class Side:
    """A process that decodes with one version of the project."""

    def __init__(self, root: Path, home: Path, settings: Settings):
        """Starts it.

        Args:
          root: of the version's files.
          home: an empty folder, where it finds no measured costs.
          settings: of the comparison.
        """
        self._root = root
        environment = os.environ | {"PYTHONPATH": str(root), "JAX_SMASH_HOME": str(home)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(SIDE)],
            cwd=root,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._tell(json_format.dumps(_asked(settings)))

    def wait_until_ready(self) -> None:
        """Returns once every case has been decoded for the first time.

        Raises:
          RuntimeError: the process ended, or imported another version.
        """
        imported = self._heard()["imported"]
        if not Path(imported).is_relative_to(self._root):
            raise RuntimeError(f"the version in {self._root} was to be measured; {imported} was imported")

    def measure(self, case: int) -> dict[str, Any]:
        """Decodes a case; returns the seconds that it took and the tokens."""
        self._tell(str(case))
        return self._heard()

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        # A process that has ended has said why on standard error; `_heard` raises.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _heard(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the version in {self._root} ended: see above")
        return json_format.loads(line)


def _asked(settings: Settings) -> dict[str, Any]:
    most = max(settings.batch_sizes)
    if settings.random_init:
        prompts: list[Any] = (
            np.random.default_rng(0).integers(0, RANDOM_VOCABULARY, (most, RANDOM_PROMPT_TOKENS)).tolist()
        )
    else:
        texts = read_prompts(PROMPTS)
        prompts = [texts[i % len(texts)] for i in range(most)]
    names = ("model", "random_init", "dtype", "tree", "temperature", "max_new_tokens")
    asked = {name: getattr(settings, name) for name in names}
    # Each side runs in its version's folder: what lies in the caller's is named from the root.
    asked |= {name: _absolute(asked[name]) for name in ("model", "random_init") if asked[name]}
    if settings.tree and settings.tree.endswith(".json"):
        asked["tree"] = _absolute(settings.tree)
    return asked | {"cases": settings.cases(), "prompts": prompts}


def _absolute(name: str) -> str:
    """Returns the absolute path of a file or folder; a name that is none stays."""
    path = Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


@contextlib.contextmanager
def files_of(commit: str) -> Iterator[tuple[Path, str]]:
    """Yields a folder with the project's files as they were at a commit, and the commit's hash.

    Raises:
      ValueError: there is no such commit, or no repository.
    """
    found = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--verify", f"{commit}^{{commit}}"], capture_output=True, text=True
    )
    if found.returncode:
        raise ValueError(f"commit must be one of this repository; got {commit!r}: {found.stderr.strip()}")
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["git", "-C", str(ROOT), "archive", found.stdout.strip()], capture_output=True, check=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        yield Path(folder), found.stdout.strip()


def measure(settings: Settings) -> dict[str, Any]:
    """Runs both versions in turn; returns a row a case, and what holds of all cases together."""
    settings.check()
    cases = settings.cases()
    with files_of(settings.commit) as (folder, digest), contextlib.ExitStack() as open_sides:
        home = Path(open_sides.enter_context(tempfile.TemporaryDirectory()))
        sides = {"before": Side(folder, home, settings), "now": Side(ROOT, home, settings)}
        for side in sides.values():
            open_sides.callback(side.close)
        for side in sides.values():
            side.wait_until_ready()
        found: list[dict[str, list[dict[str, Any]]]] = [{"before": [], "now": []} for _ in cases]
        with progress("pairs", settings.pairs * len(cases)) as advance:
            for pair in range(settings.pairs):
                for number, samples in enumerate(found):
                    # Who comes first takes turns too.
                    for name in ("before", "now") if pair % 2 else ("now", "before"):
                        time.sleep(settings.settle_seconds)
                        samples[name].append(sides[name].measure(number))
                    advance()
    rows = [case | _row(samples) for case, samples in zip(cases, found, strict=True)]
    return {"against": digest, "rows": rows, "pooled": _pooled(rows)}


def _row(samples: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    seconds = {name: [sample["seconds"] for sample in own] for name, own in samples.items()}
    pairs = zip(samples["before"], samples["now"], strict=True)
    return {
        "pairs": len(seconds["now"]),
        "before_s": statistics.median(seconds["before"]),
        "now_s": statistics.median(seconds["now"]),
        **_speed(seconds["before"], seconds["now"]),
        "same_text": all(before["tokens"] == now["tokens"] for before, now in pairs),
        "seconds": seconds,
    }


def _pooled(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the speed over all cases, each of the same weight."""
    pooled: dict[str, list[float]] = {"before": [], "now": []}
    for row in rows:
        for name, own in row["seconds"].items():
            pooled[name] += [seconds / row["before_s"] for seconds in own]
    return _speed(pooled["before"], pooled["now"])


def _speed(before: Sequence[float], now: Sequence[float]) -> dict[str, float]:
    """Returns the median speed of this version over the earlier one's, and the interval of the ratio of all seconds."""
    interval = ratio_bootstrap(before, now)
    assert interval is not None
    ratios = [old / new for old, new in zip(before, now, strict=True)]
    return {"speed": statistics.median(ratios), "low": interval.low, "high": interval.high}


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Measures, prints a table, writes the report."""
    report = heading("eval.against", arguments, dataclasses.asdict(settings)) | measure(settings)
    print_table(f"Speed over {report['against'][:7]}'s", report["rows"], COLUMNS)
    pooled = report["pooled"]
    print(f"all cases: {pooled['speed']:.3f} ({pooled['low']:.3f} to {pooled['high']:.3f})")
    if settings.json is not None:
        write_json(settings.json, report)


if __name__ == "__main__":
    run_program(Settings, main)
