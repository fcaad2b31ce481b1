"""A JSON-lines file that appears under its name only when it is whole."""

import contextlib
import io
import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

from jax_smash.cli.errors import UsageError


class _Extent(NamedTuple):
    """How far a file reaches: one value, so that an interrupt never comes between its lines and its bytes."""

    lines: int
    size: int


class RecordFile:
    """Lines written to `NAME.partial` as they come, renamed to `NAME` at the end.

    Whatever ends the program early, lines already written stay in the partial file, and a file that bears the name is
    either the old one or a whole new one. As a context manager it renames on leaving; after an exception it keeps
    the partial file, says so in a note on the exception, and removes the file where it holds no line.

    Attributes:
      path: the file's name.
      partial: where lines are until then.
    """

    def __init__(self, path: Path, *, overwrite: bool = False):
        """Checks that the file can be made; writes nothing.

        Args:
          path: the file's name.
          overwrite: the file and a partial one may exist and be replaced.

        Raises:
          UsageError: one of them exists, is no regular file, or its directory is missing or read-only.
        """
        self.path, self.partial = path, path.with_name(path.name + ".partial")
        self._overwrite = overwrite
        self._written = self._writing = _Extent(0, 0)
        self._file: io.FileIO | None = None
        if not path.parent.is_dir():
            raise UsageError(f"the output {path} needs a directory {path.parent}; there is none")
        if path.exists() and not path.is_file():
            raise UsageError(f"the output must be a regular file; {path} is none")
        if not os.access(path.parent, os.W_OK):
            raise UsageError(f"the output {path} cannot be made: {path.parent} is read-only")
        self._refuse(path)
        self._refuse(self.partial)

    def __enter__(self) -> "RecordFile":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self._publish()
            return
        if self._file is not None:
            with self._file as file:
                lines = self._settle(file)
            if lines:
                error.add_note(f"{lines} finished completions are in {self.partial}")
            else:
                self.partial.unlink(missing_ok=True)

    def write(self, record: dict[str, Any]) -> None:
        """Adds a line, which is on its way to the disk when this returns. Numbers that are not finite become null.

        Raises:
          OSError: the disk is full, or fails otherwise. Leaving the context then cuts the part of a line away.
        """
        line = memoryview(json.dumps(_finite(record), ensure_ascii=False, allow_nan=False).encode() + b"\n")
        file = self._open()
        self._writing = _Extent(self._written.lines + 1, self._written.size + len(line))
        try:
            done = 0
            while done < len(line):
                done += file.write(line[done:])
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.partial)) from error
        self._written = self._writing

    def _settle(self, file: io.FileIO) -> int:
        """Leaves whole lines alone in the file; returns how many they are.

        An interrupt may come at any point of a write: after the whole line, too, and before it was counted.
        """
        if os.fstat(file.fileno()).st_size == self._writing.size:
            return self._writing.lines
        with contextlib.suppress(OSError):
            os.ftruncate(file.fileno(), self._written.size)
        return self._written.lines

    def _open(self) -> io.FileIO:
        if self._file is None:
            # "x": of two programs that were given one name, the second is refused.
            self._file = open(self.partial, "wb" if self._overwrite else "xb", buffering=0)  # noqa: SIM115
        return self._file

    def _publish(self) -> None:
        with self._open() as file:
            os.fsync(file.fileno())
        self._refuse(self.path)
        os.replace(self.partial, self.path)

    def _refuse(self, path: Path) -> None:
        if not self._overwrite and os.path.lexists(path):
            raise UsageError(f"{path} exists; --overwrite permits replacing it")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
