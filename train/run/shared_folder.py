"""Whether all hosts of a run see the same folder."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from pathlib import Path

from jax_smash.hosts import decided, is_first, joined, processes, told_by_all

TOKEN = ".hosts"
"""File that the first host writes, for the others to see."""

LONGEST_S = 60
"""Seconds that a file may take to be seen: a network's folders are looked at again after a while."""


def check_shared(folder: Path) -> None:
    """Checks that a run's folder is one and the same on all hosts: Orbax would wait for its files without end.

    Raises:
      ValueError: some host does not see what the first one wrote. Nothing is left behind.
    """
    if not joined():
        return
    made = not folder.exists()
    token = decided(lambda: _write(folder))
    blind = [
        process for process, seen in told_by_all("shared", str(_sees(folder / TOKEN, token))).items() if seen != "True"
    ]
    if is_first():
        (folder / TOKEN).unlink(missing_ok=True)
        if made and blind:
            with contextlib.suppress(OSError):
                folder.rmdir()
    if blind:
        who = f"process {blind[0]}" if len(blind) == 1 else f"processes {', '.join(map(str, blind))}"
        raise ValueError(
            f"--output must be a folder that all hosts share; {who} of {processes()} did not find in {folder} what "
            f"process 0 wrote there"
        )


def _write(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    token = uuid.uuid4().hex
    (folder / TOKEN).write_text(token)
    return token


def _sees(file: Path, token: str) -> bool:
    until = time.monotonic() + LONGEST_S
    while True:
        with contextlib.suppress(OSError):
            os.listdir(file.parent)  # Has a network's folder looked at again.
            if file.read_text() == token:
                return True
        if time.monotonic() > until:
            return False
        time.sleep(0.5)
