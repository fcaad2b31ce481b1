"""Ctrl-C that is not lost."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """While it is entered, `check` raises KeyboardInterrupt again once SIGINT has come.

    Python drops what is raised in a finaliser or in a callback of a library, an interrupt that happens to come there
    too: the program would print a traceback, then go on as if nobody had asked it to end. Outside the main thread, or
    where SIGINT is ignored or handled by somebody else, nothing is changed.
    """

    def __init__(self) -> None:
        self._came = False
        self._before: Any = None
        self._unraisable: Any = None

    def __enter__(self) -> Interrupts:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._hear)
            self._unraisable, sys.unraisablehook = sys.unraisablehook, self._drop
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            sys.unraisablehook = self._unraisable

    def check(self) -> None:
        """Raises KeyboardInterrupt if SIGINT has come."""
        if self._came:
            raise KeyboardInterrupt

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        raise KeyboardInterrupt

    def _drop(self, dropped: sys.UnraisableHookArgs) -> None:
        if not (self._came and dropped.exc_type is KeyboardInterrupt):
            self._unraisable(dropped)
