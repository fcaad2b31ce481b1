"""Which weights these are, told from a few thousand elements of each tensor, however they are stored."""

import hashlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Int

from jax_smash.checkpoints.huggingface import Place
from jax_smash.config import ModelConfig
from jax_smash.models.families import ParamPath, Part, tensor_map
from jax_smash.quantise import has_int8
from jax_smash.sharding import on_host

SAMPLE = 1024
"""Elements of a tensor that count; of a smaller one all do."""

SCATTER = 2654435761
"""Multiplier that spreads the elements over their stretches, so that they do not fall into one column."""


class Fingerprint:
    """Collects the elements that tell weights apart, while a checkpoint is read or from parameters in memory.

    Weights are told by the tensors of their Hugging Face checkpoint: names, shapes and `SAMPLE` elements of each,
    rounded to bfloat16. So safetensors in one file or many, Orbax, float32, bfloat16, several devices and a load in
    another dtype give the same fingerprint; float16, whose range is smaller, gives it for weights that it holds as they
    are. What is changed in a few elements alone, such as the vector of one token, may go unseen.
    """

    def __init__(self, config: ModelConfig):
        self._parts = tensor_map(config)
        self._found: dict[tuple[str, int], bytes] = {}

    def place(self, inner: Place | None = None) -> Place:
        """Returns a function that looks at each parameter, then puts it where `inner` does.

        Args:
          inner: puts a parameter on its device; None for the default device.
        """

        def placed(where: ParamPath, array: Any) -> Any:
            self.add(where, array)
            return jax.device_put(array) if inner is None else inner(where, array)

        return placed

    def add(self, where: ParamPath, array: Any) -> None:
        """Looks at a parameter.

        Args:
          where: the parameter's path in the model.
          array: its floats, of numpy or JAX, on one device or divided.
        """
        for part in self._parts[where]:
            elements = np.asarray(on_host(_taken(array, _coordinates(part, array.shape))), np.float32)
            bits = elements.astype(jnp.bfloat16).view(np.uint16).astype("<u2")
            self._found[part.name, part.start] = f"{part.name} {list(part.shape)} ".encode() + bits.tobytes()

    def hexdigest(self) -> str:
        """Returns the fingerprint, a SHA-256.

        Raises:
          ValueError: a tensor has not been seen.
        """
        expected = {(part.name, part.start) for parts in self._parts.values() for part in parts}
        if missing := sorted(expected - {*self._found}):
            raise ValueError(f"a fingerprint needs all tensors; {missing[0][0]} is missing")
        return hashlib.sha256(b"".join(self._found[part] for part in sorted(expected))).hexdigest()


def fingerprint(config: ModelConfig, params: nnx.State) -> str:
    """Returns the fingerprint of parameters in memory. See `Fingerprint`.

    Raises:
      ValueError: weights are int8: they are rounded, and do not tell what they were made from.
    """
    if has_int8(params):
        raise ValueError("weights must be plain to tell which they are; got int8, which are rounded")
    seen = Fingerprint(config)
    for where, variable in nnx.to_flat_state(params):
        seen.add(where, variable.get_value())
    return seen.hexdigest()


def sampled_places(size: int) -> Int[np.ndarray, "sample"]:
    """Returns the indices of the elements of a tensor that count, one in each of `SAMPLE` equal stretches of it."""
    count = min(size, SAMPLE)
    number = np.arange(count, dtype=np.int64)
    start = number * size // count
    width = (number + 1) * size // count - start
    return start + number * SCATTER % 2**32 % width


def _coordinates(part: Part, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Returns where the elements of a tensor that count stand in the parameter that it is a part of."""
    sample = sampled_places(math.prod(part.shape))
    coordinates = []
    for axis, size in enumerate(shape):
        # Each element's index along one axis, as a view of a single row: nothing of the parameter's size is made.
        along = np.arange(size).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        seen = part.view(np.broadcast_to(along, shape))
        coordinates.append(seen[np.unravel_index(sample, seen.shape)])
    return tuple(coordinates)


def _taken(array: Any, where: tuple[np.ndarray, ...]) -> Any:
    if isinstance(array, jax.Array) and (len(array.devices()) > 1 or array.devices().pop().platform != "cpu"):
        return _take(array, where)  # On its devices, for only the elements are to leave them.
    return np.asarray(array)[where]


@jax.jit
def _take(array: jax.Array, where: tuple[jax.Array, ...]) -> jax.Array:
    return array[where]
