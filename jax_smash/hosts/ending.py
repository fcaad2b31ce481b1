"""How the processes of one program end together: none waits on its devices for one that is gone."""

import atexit
import contextlib
import os
import sys
import threading
import time
from types import TracebackType
from typing import NoReturn

import jax

from jax_smash.hosts.store import (
    ROOT,
    first_line,
    is_first,
    joined,
    processes,
    read_all,
    service,
    tell,
    wait_for_all,
)

LOOK_S = 1.0
"""Seconds between two looks at whether another process has failed."""

LINGER_S = 3 * LOOK_S
"""Seconds that the first process, which holds the store, stays after a failure, so that others can read why."""

FAILED = f"{ROOT}/failed"
"""Under which a process that fails says why."""

SIGNS = ("Gloo", "onnection", "heartbeat", "coordination", "UNAVAILABLE", "Barrier")
"""Words of errors that come of another process's end."""

_ENDING = threading.Event()


def fail(text: str, status: int = 1, *, told: bool = False) -> NoReturn:
    """Ends a process of several because of an error, and has the others end too. On one host it only leaves.

    Nothing is waited for: other processes may be waiting for this one on their devices.

    Args:
      text: a line for standard error, with what stands before it; empty for none.
      status: of the process.
      told: the line is there already.
    """
    if text and not told:
        print(text, file=sys.stderr, flush=True)
    if not joined():
        sys.exit(status)
    _ENDING.set()
    with contextlib.suppress(Exception):
        tell(f"{FAILED}/{service().process_id}", text or f"ended with status {status}")
        if is_first():
            time.sleep(LINGER_S)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)


def loss_of_host(error: BaseException) -> str | None:
    """Returns what is to be told where an error is that another process has gone; None where it is not.

    Waits a moment for what that process may have told.
    """
    if not joined() or not isinstance(error, jax.errors.JaxRuntimeError | OSError):
        return None
    text = str(error)
    if not any(sign in text for sign in SIGNS):
        return None
    until = time.monotonic() + 2 * LOOK_S
    while time.monotonic() < until:
        if others := _failures():
            return _failure(*others[0])
        time.sleep(LOOK_S / 10)
    return f"another process of the {processes()} was lost: it ended or cannot be reached ({first_line(error)})"


def watch() -> None:
    """Has this process end when another has failed."""

    def look() -> None:
        while not _ENDING.wait(LOOK_S):
            try:
                others = _failures()
            except Exception:  # The store is gone: JAX ends this process.
                return
            if others and not _ENDING.is_set():
                print(f"error: {_failure(*others[0])}", file=sys.stderr, flush=True)
                if is_first():
                    time.sleep(LINGER_S)
                os._exit(1)

    thread = threading.Thread(target=look, daemon=True, name="other processes")
    thread.start()
    shown = sys.excepthook

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shown(kind, error, trace)
        fail(f"{kind.__name__}: {first_line(error)}", told=True)

    sys.excepthook = uncaught

    def stop() -> None:
        # One that has nothing left to do still hears of others that fail.
        with contextlib.suppress(OSError):
            wait_for_all("end")
        _ENDING.set()
        thread.join(2 * LOOK_S)

    atexit.register(stop)


def _failures() -> list[tuple[int, str]]:
    own = service().process_id
    return sorted((process, text) for process, text in read_all(FAILED).items() if process != own)


def _failure(process: int, text: str) -> str:
    return f"process {process} of {processes()} ended: {text.removeprefix('jax-smash: ').removeprefix('error: ')}"
