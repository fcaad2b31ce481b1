"""Checkpoints of a run: written beside the training, whole or not at all, the newest two kept."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any, TypeVar

import jax
from orbax.checkpoint import v1 as ocp

from jax_smash.checkpoints.directory import FULL

Tree = TypeVar("Tree")

KEPT = 2
"""Checkpoints that stay on disk: the newest and, should it be damaged, the one before."""


class Checkpoints:
    """The checkpoints in a folder, one a step. Close it, or use it as a context, when no more are saved.

    Args:
      folder: made if it is absent.
      reading: another program may be saving there; otherwise what one that died left unfinished is removed.
    """

    def __init__(self, folder: Path, *, reading: bool = False):
        # It logs every error with a traceback, and raises it too.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        folder.mkdir(parents=True, exist_ok=True)
        keep = ocp.training.preservation_policies.LatestN(KEPT)
        self.folder = folder
        self._checkpointer = ocp.training.Checkpointer(
            folder.absolute(), preservation_policy=keep, cleanup_tmp_directories=not reading
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
        newest = self._checkpointer.latest
        return None if newest is None else newest.step

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
            self._checkpointer.save_async(step, _named_leaves(tree), force=True, custom_metadata=notes)
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
        """Returns the newest checkpoint, in the structure, shapes, dtypes and shardings of a pytree, and its notes.

        Raises:
          ValueError: there is no checkpoint, or it holds other arrays.
        """
        self.wait()
        if self.latest is None:
            raise ValueError(f"{self.folder} must hold a checkpoint; got none")
        wanted = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
            for name, leaf in _named_leaves(like).items()
        }
        found = self._checkpointer.metadata(None)
        saved = found.metadata
        if differing := sorted(name for name in {*saved, *wanted} if _shape(saved, name) != _shape(wanted, name)):
            name = differing[0]
            raise ValueError(
                f"{self.folder} holds another model: {name} must be of shape {_shape(wanted, name)}; "
                f"got {_shape(saved, name)}"
            )
        loaded = self._checkpointer.load(None, wanted)
        tree = jax.tree.unflatten(jax.tree.structure(like), [loaded[name] for name in _named_leaves(like)])
        return tree, dict(found.custom_metadata or {})


def _shape(arrays: dict[str, Any], name: str) -> tuple[int, ...] | None:
    return tuple(arrays[name].shape) if name in arrays else None


def _named_leaves(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
