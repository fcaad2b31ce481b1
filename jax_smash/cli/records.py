"""A JSON-lines file that appears under its name only when it is whole."""

import contextlib
import io
import json
import math
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jax_smash.cli.errors import UsageError
from jax_smash.cli.resume import NOTHING, Kept, check_same, read_kept


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
      overwrite: a whole file may be replaced.
      kept: what an earlier run left of it; nothing unless the file is resumed.
      whole: the earlier run ended well, and `kept` is of `path`: there is nothing to enter the context for.
    """

    def __init__(self, path: Path, *, overwrite: bool = False, resume: bool = False):
        """Checks that the file can be made; writes nothing.

        Args:
          path: the file's name.
          overwrite: the file and a partial one may exist and be replaced.
          resume: what an earlier run left is kept, and lines are added to it. Then only what it replaces at the end
            may be overwritten.

        Raises:
          UsageError: one of them exists, is no regular file or holds something else, or the directory is missing or
            read-only.
        """
        self.path, self.partial = path, path.with_name(path.name + ".partial")
        self.overwrite = overwrite
        self._file: io.FileIO | None = None
        if not path.parent.is_dir():
            raise UsageError(f"the output {path} needs a directory {path.parent}; there is none")
        for file in (path, self.partial) if resume else (path,):
            if file.exists() and not file.is_file():
                raise UsageError(f"the output must be a regular file; {file} is none")
        if not os.access(path.parent, os.W_OK):
            raise UsageError(f"the output {path} cannot be made: {path.parent} is read-only")
        left = resume and os.path.lexists(self.partial)
        self.whole = resume and not left and os.path.lexists(path)
        if not self.whole:
            self._refuse(path)
        if not resume:
            self._refuse(self.partial, "--resume continues it, --overwrite")
        self.kept = read_kept(self.partial) if left else read_kept(path) if self.whole else NOTHING
        self._resumed = left
        self._written = self._writing = _Extent(self.kept.lines, self.kept.size)

    def start_anew(self) -> None:
        """Takes a whole file for one to replace.

        Raises:
          UsageError: it may not be overwritten.
        """
        self._refuse(self.path)
        self.kept, self.whole = NOTHING, False
        self._written = self._writing = _Extent(0, 0)

    def __enter__(self) -> "RecordFile":
        if self._resumed:
            self._open()  # Before any work: another program may be writing it.
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self._publish()
            return
        if self._file is not None:
            with self._file as file:
                lines = self._settle(file)
            if lines:
                error.add_note(f"{lines} finished completions are in {self.partial}; --resume continues it")
            else:
                self.partial.unlink(missing_ok=True)

    def write(self, record: dict[str, Any]) -> None:
        """Adds a line, which is on its way to the disk when this returns. Numbers that are not finite become null.

        Raises:
          OSError: the disk is full, or fails otherwise. Leaving the context then cuts the part of a line away.
        """
        line = memoryview(json.dumps(_finite(record), ensure_ascii=False, allow_nan=False).encode() + b"\n")
        file = self._open()
        if self._writing.lines == self.kept.lines:
            _cut(file, self.kept)
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
        if self._writing.lines == self.kept.lines:
            return self.kept.lines
        if os.fstat(file.fileno()).st_size == self._writing.size:
            return self._writing.lines
        with contextlib.suppress(OSError):
            os.ftruncate(file.fileno(), self._written.size)
        return self._written.lines

    def _open(self) -> io.FileIO:
        if self._file is None:
            # "x": of two programs that were given one name, the second is refused.
            mode: Literal["r+b", "ab", "xb"] = "r+b" if self._resumed else "ab" if self.overwrite else "xb"
            file = open(self.partial, mode, buffering=0)  # noqa: SIM115
            _claim(file, self.partial, size=self.kept.total if self._resumed else None)
            self._file = file
        return self._file

    def _publish(self) -> None:
        with self._open() as file:
            if self._writing.lines == self.kept.lines:
                _cut(file, self.kept)
            os.fsync(file.fileno())
        self._refuse(self.path)
        os.replace(self.partial, self.path)

    def _refuse(self, path: Path, what: str = "--overwrite") -> None:
        if not self.overwrite and os.path.lexists(path):
            raise UsageError(f"{path} exists; {what} permits replacing it")


def resumed(records: RecordFile, made_with: dict[str, Any], total: int) -> int:
    """Returns how many completions of an earlier run a file holds; it begins anew where it may and must.

    Args:
      records: the file, which has not been entered.
      made_with: what decides the completions now.
      total: completions that there will be.

    Raises:
      UsageError: the file was made with something else.
    """
    kept = records.kept
    where = records.path if records.whole else records.partial
    try:
        if kept.lines or records.whole:
            check_same(kept.made_with, made_with, where)
    except UsageError:
        if not (records.whole and records.overwrite):
            raise
        records.start_anew()
        return 0
    if kept.lines > total or (records.whole and kept.lines < total):
        raise UsageError(f"--resume: {where} must hold {total} completions; it holds {kept.lines}")
    return kept.lines


def _cut(file: io.FileIO, kept: Kept) -> None:
    """Cuts a line away that an earlier run wrote in part; lines are added behind the last whole one."""
    if os.fstat(file.fileno()).st_size != kept.size:
        os.ftruncate(file.fileno(), kept.size)
    file.seek(kept.size)


def _claim(file: io.FileIO, path: Path, *, size: int | None) -> None:
    """Takes a file for this program alone, as long as it is open.

    Raises:
      UsageError: another program is writing it, or it does not have `size` bytes any more.
    """
    taken = False
    with contextlib.suppress(ImportError, OSError):  # Some file systems, and Windows, have no such locks.
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            taken = True
    if taken or size not in (None, os.fstat(file.fileno()).st_size):
        file.close()
        raise UsageError(f"another program is writing {path}")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
