"""Several processes of one program on this machine, joined by JAX's own service."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.compiling import QUICKLY

ROOT = Path(__file__).parents[1]


class Ended(NamedTuple):
    """What became of a process: its status, what it printed, and the seconds until it ended."""

    status: int
    output: str
    errors: str
    seconds: float


class Hosts:
    """Processes of one program that run. Everything that they print goes to files, for a pipe that nobody reads fills.

    Args:
      program: words behind `python`, without what joins the processes.
      count: of processes.
      each: further words, for each process; None for none.
      environment: variables beside this process's own.
      folders: where each process works, made if absent; None for this process's.
    """

    def __init__(
        self,
        program: Sequence[object],
        count: int = 2,
        *,
        each: Sequence[Sequence[object]] | None = None,
        environment: dict[str, str] | None = None,
        folders: Sequence[Path] | None = None,
    ):
        self.address = f"localhost:{free_port()}"
        self._files = [(tempfile.TemporaryFile(), tempfile.TemporaryFile()) for _ in range(count)]  # noqa: SIM115
        variables = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "1"}
        variables |= QUICKLY | (environment or {})
        self.processes = []
        for i, (output, errors) in enumerate(self._files):
            words = [*program, "--coordinator", self.address, "--num-processes", count, "--process-id", i]
            words += each[i] if each is not None else []
            folder = None if folders is None else folders[i]
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, *map(str, words)]
            self.processes.append(subprocess.Popen(command, env=variables, stdout=output, stderr=errors, cwd=folder))

    def kill_when(
        self, process: int, when: Callable[[], bool], *, by: int = signal.SIGKILL, timeout: float = 240
    ) -> None:
        """Sends a process a signal once something is so; raises AssertionError if it ends before."""
        until = time.monotonic() + timeout
        while not when():
            assert self.processes[process].poll() is None, self._read(process)[1]
            assert time.monotonic() < until
            time.sleep(0.005)
        self.processes[process].send_signal(by)

    def ended(self, *, timeout: float = 240) -> list[Ended]:
        """Waits for all, and ends those that have not ended in time; returns what became of them."""
        began, taken = time.monotonic(), {}
        while len(taken) < len(self.processes) and time.monotonic() < began + timeout:
            for i, process in enumerate(self.processes):
                if i not in taken and process.poll() is not None:
                    taken[i] = time.monotonic() - began
            time.sleep(0.01)
        for process in self.processes:
            process.kill()
            process.wait()
        found = [
            Ended(process.returncode, *self._read(i), taken.get(i, float("inf")))
            for i, process in enumerate(self.processes)
        ]
        for file in (file for files in self._files for file in files):
            file.close()
        return found

    def errors(self, process: int) -> str:
        """Returns what a process has written to its standard error so far."""
        return self._read(process)[1]

    def _read(self, process: int) -> tuple[str, str]:
        # The process writes on at the same place of the file, so it is not moved.
        texts = [os.pread(file.fileno(), 2**24, 0).decode(errors="replace") for file in self._files[process]]
        return texts[0], texts[1]


def free_port() -> int:
    """Returns a port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]
