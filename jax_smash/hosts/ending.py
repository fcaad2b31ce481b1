"""How the processes of one program end together: none waits on its devices for one that is gone."""

import atexit
import contextlib
import os
import re
import sys
import threading
import time
from types import TracebackType
from typing import NoReturn

import jax
from jax.experimental import multihost_utils

from jax_smash.hosts.life import SIGN_S, Silence, give_sign, silent_ones
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

STATUS = re.compile(r"[A-Z_]{4,}: ")
"""What errors of the runtime begin with, as in `UNKNOWN: `."""

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
    text = str(error)
    # Where programs run on a CPU, JAX raises some of its own as ValueError.
    of_jax = isinstance(error, jax.errors.JaxRuntimeError | OSError) or STATUS.match(text)
    if not joined() or not of_jax:
        return None
    if not any(sign in text for sign in SIGNS):
        return None
    until = time.monotonic() + 2 * LOOK_S
    while time.monotonic() < until:
        if others := _failures():
            return _failure(*others[0])
        time.sleep(LOOK_S / 10)
    return f"another process of the {processes()} was lost: it ended or cannot be reached ({first_line(error)})"


def told_to_end(step: int) -> bool:
    """Returns whether a process was told to end (SIGTERM), and this is the step after which all can.

    The answer is the same on all processes. Every one must ask after each step; on one host it is False.
    """
    return (
        joined()
        and service().preemption_sync_manager is not None
        and multihost_utils.reached_preemption_sync_point(step)
    )


def watch() -> None:
    """Has this process end when another has failed, and the first tell which one gives no more signs of life."""

    def look() -> None:
        silence, number = Silence(), 1
        while not _ENDING.wait(LOOK_S):
            try:
                if number % SIGN_S == 0:
                    give_sign(number)
                    if is_first() and (told := silent_ones(silence, time.monotonic())):
                        print(f"note: {told}", file=sys.stderr, flush=True)
                number += 1
                others = _failures()
            except Exception:  # The store is gone: JAX ends this process.
                return
            if others and not _ENDING.is_set():
                print(f"error: {_failure(*others[0])}", file=sys.stderr, flush=True)
                if is_first():
                    time.sleep(LINGER_S)
                os._exit(1)

    give_sign(0)  # Before any waits for another, so that the first knows of all.
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
