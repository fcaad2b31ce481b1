"""Which part of a tensor the devices of this process hold, so that it reads no more than that."""

from collections.abc import Sequence

import numpy as np
from jax.sharding import Sharding

from jax_smash.models.families import Part

Box = tuple[slice, ...]
"""A range of each axis of an array."""


def held_box(sharding: Sharding, shape: Sequence[int]) -> Box:
    """Returns the smallest box of an array that holds all that lies on devices of this process."""
    boxes = sharding.addressable_devices_indices_map(tuple(shape)).values()
    ranges = [[index.indices(size)[:2] for index, size in zip(box, shape, strict=True)] for box in boxes if box]
    return tuple(slice(min(a for a, _ in along), max(b for _, b in along)) for along in zip(*ranges, strict=True))


def region_of(part: Part, shape: Sequence[int], box: Box) -> Box:
    """Returns the smallest box of a part's view that holds what of the part lies in a box of the parameter.

    Args:
      part: a checkpoint tensor, or rows of one.
      shape: of the parameter that it is a part of.
      box: of the parameter.
    """
    ranges: dict[int, slice] = {}
    sizes: tuple[int, ...] = ()
    for axis, (size, held) in enumerate(zip(shape, box, strict=True)):
        inside = np.zeros(size, bool)
        inside[held] = True
        # Nothing of the parameter's size is made: along all other axes the same element is seen again.
        seen = part.view(np.broadcast_to(inside.reshape([-1 if a == axis else 1 for a in range(len(shape))]), shape))
        sizes = seen.shape
        own = [a for a, stride in enumerate(seen.strides) if stride and sizes[a] > 1]
        small = seen[tuple(slice(None) if a in own else slice(0, 1) for a in range(seen.ndim))]
        if not small.any():
            return tuple(slice(0, 0) for _ in sizes)
        for a in own:
            along = np.flatnonzero(small.any(axis=tuple(b for b in range(seen.ndim) if b != a)))
            ranges[a] = slice(int(along[0]), int(along[-1]) + 1)
    return tuple(ranges.get(a, slice(0, size)) for a, size in enumerate(sizes))
