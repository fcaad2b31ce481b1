"""Safetensors files, read and written in small pieces, so that memory holds one copy of the weights."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from jax_smash.checkpoints.fit import DTYPES, Shape

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth")

PIECE = 2**20
"""Bytes that are read or written at a time: a piece should stay in a core's cache while its axes are turned."""

BITS = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}
"""The dtype that stands for weights while they are moved, by their width in bytes: NumPy copies it fast."""

_EXPONENT = {"bfloat16": 0x7F80, "float16": 0x7C00, "float32": 0x7F80_0000}


class Shards:
    """The tensors of a directory with one or many safetensors files. Open only inside a `with` block.

    Attributes:
      directory: where the files are.
      shapes: shape of each tensor, by name.
      dtypes: dtype of each tensor, by name.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.shapes: dict[str, Shape] = {}
        self.dtypes: dict[str, np.dtype] = {}
        self._slices: dict[str, Any] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Shards":
        """Opens the files and reads their headers.

        Raises:
          FileNotFoundError: there are no safetensors files, or one that the index names is missing.
          ValueError: a file is damaged, or has weights of a dtype that is not supported.
        """
        for path in weight_files(self.directory):
            try:
                # Without mapping the file into memory: mapped pages count as this process's memory.
                file = self._stack.enter_context(safe_open(path, framework="numpy", backend="pread"))
                for name in file.keys():  # noqa: SIM118 - it is no dictionary.
                    self._add(name, file.get_slice(name), path)
            except SafetensorError as error:
                self._stack.close()
                raise ValueError(f"{path} is damaged or incomplete: {error}") from error
        return self

    def _add(self, name: str, piece: Any, path: Path) -> None:
        if piece.get_dtype() not in DTYPES:
            raise ValueError(
                f"{name} in {path} has dtype {piece.get_dtype()}; supported dtypes of weights: {', '.join(DTYPES)}"
            )
        self.shapes[name] = tuple(piece.get_shape())
        self.dtypes[name] = DTYPES[piece.get_dtype()]
        self._slices[name] = piece

    def __exit__(self, *error: Any) -> None:
        self._slices.clear()
        self._stack.close()

    def pieces(self, name: str, step: int) -> Iterator[np.ndarray]:
        """Yields a tensor in pieces along its first axis, whole multiples of `step` long and about `PIECE` bytes."""
        rows = self.shapes[name][0]
        row_bytes = self.dtypes[name].itemsize * int(np.prod(self.shapes[name][1:]))
        stride = step * max(1, PIECE // (row_bytes * step))
        for start in range(0, rows, stride):
            yield self._slices[name][start : min(start + stride, rows)]

    def read_into(self, name: str, view: np.ndarray, dtype: np.dtype) -> None:
        """Writes a tensor into a view, cast to a dtype.

        Args:
          name: of the tensor.
          view: as `Part.view` makes it, of an array of `BITS`.
          dtype: what those bits mean.

        Raises:
          ValueError: the tensor holds NaN or infinity, or does so after the cast.
        """
        step, at = self.shapes[name][0] // view.shape[0], 0
        for piece in self.pieces(name, step):
            if not finite(piece):
                raise ValueError(f"{name} in {self.directory} holds NaN or infinity")
            with np.errstate(over="ignore"):
                cast = piece.astype(dtype, copy=False)
            if cast is not piece and not finite(cast):
                raise ValueError(f"{name} in {self.directory} holds values that {dtype} cannot hold")
            stop = at + len(piece) // step
            _turn(view[at:stop], cast.view(view.dtype))
            at = stop

    def equal(self, one: str, other: str) -> bool:
        """Returns whether two tensors of the same shape and dtype hold the same bits."""
        width = BITS[self.dtypes[one].itemsize]
        pairs = zip(self.pieces(one, 1), self.pieces(other, 1), strict=True)
        return all(np.array_equal(a.view(width), b.view(width)) for a, b in pairs)


def finite(weights: np.ndarray) -> bool:
    """Returns whether all weights are finite, from their bits: many times faster than to ask NumPy of bfloat16."""
    exponent = _EXPONENT[weights.dtype.name]
    bits = weights.view(BITS[weights.dtype.itemsize])
    sign_free = bits & bits.dtype.type(~(1 << (8 * bits.dtype.itemsize - 1)) & (2 ** (8 * bits.dtype.itemsize) - 1))
    return not weights.size or int(sign_free.max()) < exponent


def weight_files(directory: Path) -> list[Path]:
    """Returns the safetensors files of a checkpoint.

    Raises:
      FileNotFoundError: there are none, or one is missing.
      ValueError: the index is damaged.
    """
    index = directory / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"{index} is damaged: it must be JSON with a weight_map") from error
        if any(Path(name).name != name for name in names):
            raise ValueError(f"{index} must name files beside it; got {names}")
        for name in names:
            if not (directory / name).is_file():
                raise FileNotFoundError(f"{directory / name} is missing; {INDEX} names it")
        return [directory / name for name in names]
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    for pickle in PICKLES:
        if (directory / pickle).exists():
            raise FileNotFoundError(
                f"{directory} has no {WEIGHTS}, only {pickle}: pickled weights can run code when they are read and "
                f"are not loaded; save the model as safetensors"
            )
    raise FileNotFoundError(f"{directory} has no {WEIGHTS}")


def write_shards(
    directory: Path,
    tensors: Mapping[str, tuple[Shape, np.dtype]],
    pieces: Callable[[str], Iterator[np.ndarray]],
    max_shard_bytes: int,
) -> None:
    """Writes safetensors files and, where there are several, their index.

    The format is a JSON header and the tensors behind it. It is written here and not by the safetensors package, whose
    writer wants all tensors of a file in memory at once.

    Args:
      directory: where to.
      tensors: shape and dtype of each tensor, in the order they are written.
      pieces: makes the contents of a tensor, a piece at a time.
      max_shard_bytes: a file gets no further tensor that would make it longer.
    """
    shards = _plan(tensors, max_shard_bytes)
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    names = names if len(shards) > 1 else [WEIGHTS]
    for name, shard in zip(names, shards, strict=True):
        with (directory / name).open("xb") as file:
            file.write(_header({tensor: tensors[tensor] for tensor in shard}))
            for tensor in shard:
                for piece in pieces(tensor):
                    file.write(np.ascontiguousarray(piece).data)
            file.flush()
            os.fsync(file.fileno())
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(_bytes(*t) for t in tensors.values())},
            "weight_map": {t: name for name, shard in zip(names, shards, strict=True) for t in shard},
        }
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _plan(tensors: Mapping[str, tuple[Shape, np.dtype]], max_shard_bytes: int) -> Sequence[list[str]]:
    if max_shard_bytes < 1:
        raise ValueError(f"max_shard_bytes must be at least 1; got {max_shard_bytes}")
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + _bytes(*tensor) > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += _bytes(*tensor)
    return shards


def _header(tensors: Mapping[str, tuple[Shape, np.dtype]]) -> bytes:
    codes = {dtype: code for code, dtype in DTYPES.items()}
    # Readers of the format's PyTorch side refuse a file that does not name it.
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, dtype) in tensors.items():
        end = offset + _bytes(shape, dtype)
        entries[name] = {"dtype": codes[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes(shape: Shape, dtype: np.dtype) -> int:
    return int(np.prod(shape)) * dtype.itemsize


def _turn(view: np.ndarray, piece: np.ndarray) -> None:
    """Copies a piece into a view whose axes may lie in memory in another order."""
    # Rows a power of two apart fall into the same lines of a cache; a margin parts them (three times as fast).
    padded = np.empty((*piece.shape[:-1], piece.shape[-1] + 32), piece.dtype)[..., : piece.shape[-1]]
    padded[...] = piece
    view[...] = padded.reshape(view.shape)
