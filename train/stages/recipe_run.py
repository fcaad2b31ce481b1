"""One stage of a recipe as a process of its own: its log, what is shown of it meanwhile, and how it ends."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.text import Text

from train.run.loop import METRICS
from train.run.settings import FILE

WAIT = 0.5
"""Seconds between two looks at a process."""

TAIL = 4096
"""Bytes at the end of a file that its last line is looked for in."""


@contextlib.contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Makes SIGTERM what Ctrl-C is, so that a stage ends with its recipe."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_stage(name: str, words: Sequence[str], output: Path, log: Path, console: Console, held: int) -> None:
    """Runs a program to its end.

    It writes to the log alone: a pipe that nobody reads would make it wait.

    Args:
      name: of the stage.
      words: after `python -m`.
      output: what it makes; the steps of a training run are shown from there.
      log: is added to.
      console: shows how far it is, where it is a terminal.
      held: an open file that the process inherits.

    Raises:
      ChildProcessError: it failed.
      OSError: the log cannot be written.
    """
    began = time.monotonic()
    with log.open("ab") as file:
        _write_heading(file, log, shlex.join(["python", "-m", *words]))
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            pass_fds=(held,),
        )
    try:
        with contextlib.suppress(OSError):  # It is only told to those who find the folder in use.
            os.ftruncate(held, 0)
            os.write(held, f"stage {name!r}, process {process.pid},".encode())
        _wait(process, name, output, log, console, began)
    except BaseException:
        _stop(process)
        raise
    if process.returncode:
        raise ChildProcessError(f"stage {name!r} {_ending(process.returncode)}; its log {log} ends: {last_line(log)}")
    console.print(f"  made in {datetime.timedelta(seconds=round(time.monotonic() - began))}")


def how_far(output: Path, log: Path) -> str:
    """Returns how far a stage is: the step of a training run, or else the last line of the log."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        measured = json.loads(last_line(output / METRICS))
        steps = json.loads((output / FILE).read_text(encoding="utf-8"))["steps"]
        losses = (
            f"{key.replace('_', ' ')} {measured[key]:.3f}"
            for key in ("loss", "choice_score", "held_out_loss")
            if key in measured
        )
        return ", ".join([f"step {measured['step']:,} of {steps:,}", *losses])
    return last_line(log)


def last_line(path: Path) -> str:
    """Returns the last line of a file that is whole and not blank; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - TAIL, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return next((line for line in reversed(lines) if line), "")


def _write_heading(file: BinaryIO, log: Path, command: str) -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        file.write(f"--- {now} {command}\n".encode())
        file.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(log)) from error


def _wait(process: subprocess.Popen[bytes], name: str, output: Path, log: Path, console: Console, began: float) -> None:
    # Of what a log says, nothing is markup.
    status: Any = console.status(Text(name)) if console.is_terminal else contextlib.nullcontext()
    with status:
        while True:
            try:
                process.wait(WAIT)
                return
            except subprocess.TimeoutExpired:
                if console.is_terminal:
                    passed = datetime.timedelta(seconds=int(time.monotonic() - began))
                    status.update(Text(f"{name}  {passed}  {how_far(output, log)}"))


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a process: what it saved so far, it resumes from."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ending(status: int) -> str:
    return f"ended with status {status}" if status > 0 else f"was ended by {signal.Signals(-status).name}"
