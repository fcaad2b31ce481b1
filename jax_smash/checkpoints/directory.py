"""A directory that appears whole or not at all."""

import contextlib
import errno
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from jax_smash.hosts import is_first, wait_for_all

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_new(target: str | Path) -> Path:
    """Returns the absolute path of a directory that may be written.

    Raises:
      FileExistsError: something that is not an empty directory is there.
    """
    path = Path(target).expanduser().resolve()
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"{path} must be a new or empty directory; it is a file")
    if path.is_dir() and any(path.iterdir()):
        raise FileExistsError(f"{path} must be a new or empty directory; it has files in it")
    return path


@contextlib.contextmanager
def new_directory(target: str | Path, size: int) -> Iterator[Path]:
    """Gives a directory to fill, and moves it to its place when it is complete.

    What is filled is a hidden neighbour of the target, so that a fault at any moment leaves the target as it was. Of
    several hosts the first one has it; others fill a temporary folder, which is removed, and wait until it is in place.

    Args:
      target: the directory to make; it must be absent or empty.
      size: bytes that will be written, at least.

    Raises:
      FileExistsError: something else is there.
      OSError: the disk is full, or has no room for `size` bytes.
    """
    if not is_first():
        with tempfile.TemporaryDirectory() as unused:
            yield Path(unused)
        wait_for_all("directory")
        return
    path = check_new(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if free < size:
        raise OSError(errno.ENOSPC, f"no room to save: {size} bytes are needed, {free} are free", str(path))
    work = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")  # One of a killed run stands in nobody's way.
    work.mkdir()
    try:
        yield work
        os.replace(work, path)
        wait_for_all("directory")
    except BaseException as error:
        _remove(work)
        if isinstance(error, OSError) and error.errno in FULL:
            raise OSError(error.errno, f"no room to save: {os.strerror(error.errno)}", str(path)) from error
        # The tokenizers library raises bare Exception, and says what the disk said in its message.
        code = re.search(r"\(os error (\d+)\)", str(error)) if type(error) is Exception else None
        if code and int(code[1]) in FULL:
            raise OSError(int(code[1]), f"no room to save: {os.strerror(int(code[1]))}", str(path)) from error
        raise


def _remove(work: Path) -> None:
    """Removes a directory for good: after an error, threads of Orbax may still write into it, or make it again."""
    absent = 0
    for _ in range(200):
        shutil.rmtree(work, ignore_errors=True)
        absent = 0 if work.exists() else absent + 1
        if absent == 5:
            return
        time.sleep(0.1)
