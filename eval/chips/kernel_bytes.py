"""Bytes that a Pallas kernel moves between main memory and fast memory, from its grid and index maps."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval.chips.traffic import Traffic

LANES, SUBLANES = 128, 8
"""Sizes of a tile; an array with fewer rows than the latter has tiles of 1, 2 or 4."""


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How a kernel reads an operand, or writes a result, piece by piece.

    Attributes:
      shape: of the array.
      dtype: of its elements.
      block: shape of a piece.
      index_map: from the indices of a step of the grid, and the scalars that are fetched beforehand, to the indices of
        the piece, in pieces.
    """

    shape: tuple[int, ...]
    dtype: Any
    block: tuple[int, ...]
    index_map: Callable[..., Sequence[Any]]

    @classmethod
    def of(cls, spec: Any, array: Any) -> "Blocks":
        """Returns the pieces of an array by a `BlockSpec`.

        Raises:
          ValueError: the spec has no block: the kernel itself says what it moves.
        """
        if spec.block_shape is None or spec.index_map is None:
            raise ValueError(f"bytes of a kernel need a block shape and an index map; got {spec}")
        block = tuple(size if isinstance(size, int) else 1 for size in spec.block_shape)
        return cls(tuple(array.shape), array.dtype, block, spec.index_map)


def kernel_bytes(
    grid: Sequence[int], reads: Sequence[Blocks], writes: Sequence[Blocks], scalars: Sequence[Any] = ()
) -> Traffic:
    """Returns what a kernel moves over its whole grid, whose last index runs fastest.

    A piece is moved where it is not the one of the step before, so a piece that is returned to is moved again. Only
    the part of a piece that is inside the array counts, filled up to whole tiles.

    Args:
      grid: steps of each axis.
      reads, writes: operands and results.
      scalars: arrays that index maps take behind the grid's indices. They count once, as operands.
    """
    steps = np.array(list(itertools.product(*(range(n) for n in grid))), np.int32).reshape(-1, len(grid))
    read = sum(_moved(steps, one, scalars) for one in reads)
    fetched = sum(x.size * x.dtype.itemsize for x in scalars)
    return Traffic(read + fetched, sum(_moved(steps, one, scalars) for one in writes))


def _moved(steps: np.ndarray, blocks: Blocks, scalars: Sequence[Any]) -> int:
    """Returns the bytes of the pieces of one array that are moved."""
    if not len(steps):
        return 0

    def piece(step: jax.Array) -> jax.Array:
        indices = blocks.index_map(*step, *scalars)
        return jnp.stack([jnp.asarray(i, jnp.int32) for i in indices])

    pieces = np.asarray(jax.jit(jax.vmap(piece))(steps))
    new = np.concatenate([[True], (pieces[1:] != pieces[:-1]).any(axis=1)])
    start = pieces[new] * np.asarray(blocks.block)
    inside = np.minimum(np.asarray(blocks.shape) - start, np.asarray(blocks.block))
    return int(_padded(inside.clip(0), blocks.shape).prod(axis=1).sum()) * np.dtype(blocks.dtype).itemsize


def _padded(sizes: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Returns sizes whose last two axes are filled up to tiles."""
    sizes = sizes.astype(np.int64)
    rows = min(SUBLANES, 1 << (shape[-2] - 1).bit_length()) if len(shape) > 1 else 1
    for axis, tile in ((-1, LANES), (-2, rows))[: len(shape)]:
        sizes[:, axis] = -(-sizes[:, axis] // tile) * tile
    return sizes
