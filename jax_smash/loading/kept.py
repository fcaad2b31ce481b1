"""What is made beside a model's weights once, and serves later calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

Made = TypeVar("Made")


class Kept:
    """What was made beside some weights, by name, while these stay the same arrays. A copy or a pickle is empty.

    The weights are not kept alive by it.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[Hashable, Sequence[weakref.ref[Any]], Any]] = {}

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()

    def get(self, name: str, key: Hashable, weights: Any, make: Callable[[], Made]) -> Made:
        """Returns what was made under a name for the same key and weights; else makes it, in place of what was there.

        Args:
          name: under which one thing is kept at a time.
          key: what it was made of, beside the weights.
          weights: a pytree of arrays.
          make: makes it.
        """
        arrays = [x for x in jax.tree.leaves(weights) if isinstance(x, jax.Array | np.ndarray)]
        if (found := self._found.get(name)) is not None:
            before, refs, made = found
            if before == key and len(refs) == len(arrays) and all(r() is x for r, x in zip(refs, arrays, strict=True)):
                return made
        made = make()
        self._found[name] = key, [weakref.ref(x) for x in arrays], made
        return made
