"""Traces of a run, for TensorBoard's profiler and Perfetto."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax


def check_folder(folder: Path | None) -> None:
    """Refuses a folder that a trace cannot be written to; None is no trace.

    Raises:
      NotADirectoryError: it is a file.
      FileNotFoundError: the folder that it is to be made in is not there.
    """
    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} must be a folder to write a trace to; it is a file")
    if not folder.resolve().parent.is_dir():
        raise FileNotFoundError(f"there is no folder {folder.parent} to make {folder.name} in")


@contextlib.contextmanager
def traced(folder: Path | None) -> Iterator[None]:
    """Writes a trace of what runs inside to a folder; None writes nothing.

    The phases of a step stand in it by name: draft, verify, choose, commit, learn, micro_step.
    """
    with contextlib.nullcontext() if folder is None else jax.profiler.trace(str(folder)):
        yield
