"""Checkpoints of a run: written whole or not at all, the newest two kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import jax
from orbax.checkpoint import v1 as ocp

Tree = TypeVar("Tree")

KEPT = 2
"""Checkpoints that stay on disk: the newest and, should it be damaged, the one before."""


class Checkpoints:
    """The checkpoints in a folder, one a step. Close it, or use it as a context, when no more are saved."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        keep = ocp.training.preservation_policies.LatestN(KEPT)
        self.folder = folder
        self._checkpointer = ocp.training.Checkpointer(folder.absolute(), preservation_policy=keep)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self._checkpointer.close()

    @property
    def latest(self) -> int | None:
        """The newest complete checkpoint's step; None where there is none."""
        newest = self._checkpointer.latest
        return None if newest is None else newest.step

    def save(self, step: int, tree: Any) -> None:
        """Saves the arrays of a pytree."""
        self._checkpointer.save(step, _named_leaves(tree), force=True)

    def load(self, like: Tree) -> Tree:
        """Returns the newest checkpoint as a pytree of the given structure, shapes, dtypes and shardings.

        Raises:
          ValueError: there is no checkpoint, or it holds other arrays.
        """
        if self.latest is None:
            raise ValueError(f"{self.folder} must hold a checkpoint; got none")
        wanted = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
            for name, leaf in _named_leaves(like).items()
        }
        saved = self._checkpointer.metadata(None).metadata
        if differing := sorted(name for name in {*saved, *wanted} if _shape(saved, name) != _shape(wanted, name)):
            name = differing[0]
            raise ValueError(
                f"{self.folder} holds another model: {name} must be of shape {_shape(wanted, name)}; "
                f"got {_shape(saved, name)}"
            )
        loaded = self._checkpointer.load(None, wanted)
        return jax.tree.unflatten(jax.tree.structure(like), [loaded[name] for name in _named_leaves(like)])


def _shape(arrays: dict[str, Any], name: str) -> tuple[int, ...] | None:
    return tuple(arrays[name].shape) if name in arrays else None


def _named_leaves(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
