"""How long a user waits: from the start of `jax-smash generate`, in a fresh process, to the first text.

    python -m eval.startup --model smollm2 --json startup.json

The first start finds an empty folder for compiled programs; the later ones find what it left there. This is measured of
the user's cache directory, and of a folder that `--programs` names.
"""

import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.reports.report import check_output, heading, print_table, progress, run_program, write_json

QUESTION = "What is the capital of France?"
COLUMNS = ("way", "n", "seconds", "text")
FIRST, AGAIN = "first start", "started again"
NAMED_FIRST, NAMED_AGAIN = f"{FIRST}, --programs", f"{AGAIN}, --programs"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Measures the time to the first text.

    Attributes:
      model: a model's name, a directory or a GGUF file.
      prompt: what is asked, in the model's chat template.
      repeats: starts with the programs of an earlier one.
      json: file to write.
      overwrite: replace the file if it exists.
    """

    model: str = "smollm2"
    prompt: str = QUESTION
    repeats: int = 5
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be measured.

        Raises:
          ValueError: an option is out of range.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1; got {self.repeats}")
        check_output(self.json, overwrite=self.overwrite)


def started(settings: Settings, cache: Path, *options: str) -> tuple[float, str]:
    """Returns the seconds until the first text of a fresh process, and all of its text.

    Args:
      settings: what is asked of which model.
      cache: where the process keeps compiled programs by default.
      options: further ones of its command.

    Raises:
      RuntimeError: the process failed.
    """
    command = [sys.executable, "-m", "jax_smash", "generate", "--model", settings.model, "--chat", *options]
    # Of the process's own choice nothing but the folder is changed: a setting of JAX's own would win over it.
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    # Fetched models stay where they are: by default that is under the folder of caches, too.
    environment |= {"XDG_CACHE_HOME": str(cache), "HF_HOME": _hub_home()}
    with tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        with subprocess.Popen(
            [*command, "--prompt", settings.prompt],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
        ) as process:
            assert process.stdout is not None
            first = process.stdout.read(1)
            seconds = time.perf_counter() - began
            text = (first + process.stdout.read()).decode()
        if process.returncode != 0:
            errors.seek(0)
            raise RuntimeError(f"jax-smash generate failed: {errors.read().strip()[-500:]}")
    return seconds, text.strip()


def _hub_home() -> str:
    """Returns where the hub keeps what it fetched."""
    from huggingface_hub.constants import HF_HOME  # Takes half a second to import.

    return HF_HOME


def measure(settings: Settings) -> dict[str, Any]:
    """Starts the processes and returns a row for each kind of start."""
    settings.check()
    with tempfile.TemporaryDirectory() as cache, progress("starts", 2 + 2 * settings.repeats) as advance:
        ways = {(FIRST, AGAIN): (), (NAMED_FIRST, NAMED_AGAIN): ("--programs", str(Path(cache, "programs")))}
        found: dict[str, list[tuple[float, str]]] = {way: [] for pair in ways for way in pair}
        for number in range(1 + settings.repeats):
            for pair, options in ways.items():  # In turn, so that both meet the same neighbours.
                found[pair[min(number, 1)]].append(started(settings, Path(cache), *options))
                advance()
    return {"rows": [_row(way, starts) for way, starts in found.items()]}


def _row(way: str, starts: Sequence[tuple[float, str]]) -> dict[str, Any]:
    seconds = [time for time, _ in starts]
    return {
        "way": way,
        "n": len(starts),
        "seconds": statistics.median(seconds),
        "range": {"low": min(seconds), "high": max(seconds)},
        "text": starts[0][1],
    }


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Measures, prints a table, writes the report."""
    report = heading("eval.startup", arguments, dataclasses.asdict(settings)) | measure(settings)
    print_table("From the command to the first text", report["rows"], COLUMNS)
    if settings.json is not None:
        write_json(settings.json, report)


if __name__ == "__main__":
    run_program(Settings, main)
