"""Checkpoints of a run: written beside the training, whole or not at all, the newest two kept."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import filelock
import jax
from orbax.checkpoint import v1 as ocp

from jax_smash.checkpoints.directory import FULL
from train.run.parts import missing_part

Tree = TypeVar("Tree")

KEPT = 2
"""Checkpoints that stay on disk: the newest and, should it be damaged, the one before."""

FORMAT = 2
"""Of what is saved. Checkpoints of 1 hold frozen weights too, and positions in the data of one host alone."""

FORMAT_NOTE = "format"
"""Under which it stands among a checkpoint's notes."""

STATE = "state"
"""Folder of a checkpoint's arrays."""

LOCK = ".lock"
"""File of a run's folder that its program holds."""


@contextlib.contextmanager
def only_run(output: Path) -> Iterator[None]:
    """Keeps other programs from training in a run's folder; of a run on several hosts the first one does.

    Raises:
      ValueError: another program trains there.
    """
    if jax.process_index():
        yield
        return
    output.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(output / LOCK)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout as error:
        raise ValueError(f"another program trains in {output}; wait for it, or stop it") from error
    try:
        yield
    finally:
        lock.release()


class Checkpoints:
    """The checkpoints of a run, one a step. Close it, or use it as a context, when no more are saved.

    Whoever only reads calls `load_newest`, which leaves the folder as it is.

    Args:
      folder: made if it is absent; what a run that died left unfinished in it is removed.
    """

    def __init__(self, folder: Path):
        _silence()
        folder.mkdir(parents=True, exist_ok=True)
        keep = ocp.training.preservation_policies.LatestN(KEPT)
        self.folder = folder
        self._checkpointer = ocp.training.Checkpointer(
            folder.absolute(), preservation_policy=keep, cleanup_tmp_directories=True
        )

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.wait()
        except OSError:
            if kind is None:  # An error that is already on its way says more.
                raise
        finally:
            self._checkpointer.close()

    @property
    def latest(self) -> int | None:
        """The newest complete checkpoint's step; None where there is none."""
        return newest_step(self.folder)

    def save(self, step: int, tree: Any, notes: dict[str, Any] | None = None) -> None:
        """Begins to save the arrays of a pytree and returns; what was begun before is finished first.

        The arrays are copied before this returns, so a step may consume them.

        Args:
          step: what the checkpoint is called.
          tree: the arrays.
          notes: what JSON can hold, saved with them.

        Raises:
          OSError: the one before could not be written.
        """
        self.wait()
        try:
            kept = {**(notes or {}), FORMAT_NOTE: FORMAT}
            self._checkpointer.save_async(step, _named_leaves(tree), force=True, custom_metadata=kept)
        except Exception as error:
            raise self._unwritten(error) from error

    def wait(self) -> None:
        """Returns when nothing is being written; raises OSError where it could not be written."""
        try:
            self._checkpointer.wait()
        except Exception as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: Exception) -> Exception:
        """Returns what a user is told about a failed save, of whatever class the writer's threads raised."""
        text = str(error)
        full = [number for number in FULL if getattr(error, "errno", None) == number or os.strerror(number) in text]
        if not full and not isinstance(error, OSError):
            return error
        number = full[0] if full else (error.errno if isinstance(error, OSError) and error.errno else errno.EIO)
        return OSError(
            number,
            f"a checkpoint could not be written: {os.strerror(number)}; the newest whole one is of step {self.latest}",
            str(self.folder),
        )

    def load(self, like: Tree) -> tuple[Tree, dict[str, Any]]:
        """Returns what `load_newest` does, once nothing is being written."""
        self.wait()
        return load_newest(self.folder, like)


def newest_step(folder: Path) -> int | None:
    """Returns the step of the newest whole checkpoint in a folder; None where there is none."""
    return max(_steps(folder), default=None)


def remove_after(folder: Path, step: int) -> None:
    """Removes the checkpoints of later steps than one from a folder that nobody writes to."""
    for later in _steps(folder):
        if later > step:
            shutil.rmtree(folder / str(later))


def newest_notes(folder: Path) -> dict[str, Any]:
    """Returns the notes of the newest whole checkpoint in a folder; none where there is none."""
    _silence()
    step = newest_step(folder)
    return {} if step is None else dict(ocp.metadata(folder.absolute() / str(step)).custom_metadata or {})


def load_newest(folder: Path, like: Tree) -> tuple[Tree, dict[str, Any]]:
    """Returns the newest whole checkpoint, in the structure, shapes, dtypes and shardings of a pytree, and its notes.

    Nothing is written to the folder, so a run may be saving there meanwhile.

    Raises:
      ValueError: there is no checkpoint, it is damaged or lacks a part that some host wrote, it was saved in another
        format, or it holds other arrays.
    """
    _silence()
    wanted = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        for name, leaf in _named_leaves(like).items()
    }
    while (step := newest_step(folder)) is not None:
        path = folder.absolute() / str(step)
        try:
            found = ocp.metadata(path)
            saved, notes = found.metadata, dict(found.custom_metadata or {})
            format_ = notes.pop(FORMAT_NOTE, 1)
            if format_ == FORMAT and (lacking := missing_part(path / STATE)):
                raise ValueError(lacking)
            differing = sorted(name for name in {*saved, *wanted} if _shape(saved, name) != _shape(wanted, name))
            loaded = {} if differing or format_ != FORMAT else ocp.load(path, wanted)
        except (MemoryError, jax.errors.JaxRuntimeError):
            raise
        except Exception as error:
            if newest_step(folder) != step:
                continue  # A run that goes on saved newer ones meanwhile and removed this one.
            older = [other for other in _steps(folder) if other < step]
            hint = f"; remove it to go back to step {max(older)}" if older else ""
            raise ValueError(f"{path} is damaged: {_line(error)}{hint}") from error
        if format_ != FORMAT:
            raise ValueError(
                f"{path} must have format {FORMAT} of checkpoints; got {format_}, of another version of this program: "
                f"begin the run anew in another folder"
            )
        if differing:
            name = differing[0]
            raise ValueError(
                f"{folder} holds another model: {name} must be of shape {_shape(wanted, name)}; "
                f"got {_shape(saved, name)}"
            )
        tree = jax.tree.unflatten(jax.tree.structure(like), [loaded[name] for name in _named_leaves(like)])
        return tree, notes
    raise ValueError(f"{folder} must hold a checkpoint; got none")


def _steps(folder: Path) -> list[int]:
    # A save that is under way has another name; it is renamed when it is whole.
    return [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]


def _silence() -> None:
    # Orbax logs every error with a traceback, and raises it too.
    logging.getLogger("absl").setLevel(logging.CRITICAL)


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _shape(arrays: dict[str, Any], name: str) -> tuple[int, ...] | None:
    return tuple(arrays[name].shape) if name in arrays else None


def _named_leaves(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
