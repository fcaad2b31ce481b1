"""A JSON-lines file that appears under its name only when it is whole."""

import contextlib
import io
import json
import math
import os
from pathlib import Path
from typing import Any

from jax_smash.cli.errors import UsageError


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
            self._file.close()
            if lines := self._settle():
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
        try:
            done = 0
            while done < len(line):
                done += file.write(line[done:])
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.partial)) from error

    def _settle(self) -> int:
        """Cuts the partial file after its last whole line; returns how many there are.

        It asks the file: an interrupt may come at any point of a write, before the count of what was written, too.
        """
        lines = end = 0
        with contextlib.suppress(FileNotFoundError), open(self.partial, "r+b") as file:
            for line in file:
                if line.endswith(b"\n"):
                    lines, end = lines + 1, end + len(line)
            file.truncate(end)
        return lines

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
