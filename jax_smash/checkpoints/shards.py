"""Safetensors files, read and written in small pieces, so that memory holds one copy of the weights."""

import itertools
import json
import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from jax_smash.checkpoints.contents import contents
from jax_smash.checkpoints.fit import DTYPES, Shape
from jax_smash.checkpoints.held import Box
from jax_smash.hosts import is_first

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth")

PIECE = 2**20
"""Bytes that are read or written at a time: a piece should stay in a core's cache while its axes are turned."""

MARGIN = 32
"""Elements that part the rows of a piece while its axes are turned."""

RUN = 2**12
"""Bytes of a row that are worth reading by themselves."""

ALL = slice(None)

BITS: dict[int, np.dtype[Any]] = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}
"""The dtype that stands for weights while they are moved, by their width in bytes: NumPy copies it fast."""

_EXPONENT = {"bfloat16": 0x7F80, "float16": 0x7C00, "float32": 0x7F80_0000}


class Shards:
    """The tensors of a directory with one or many safetensors files. Only headers are kept in memory.

    Attributes:
      directory: where the files are.
      shapes: shape of each tensor, by name.
      dtypes: dtype of each tensor, by name.
    """

    def __init__(self, directory: Path, files: Sequence[Path] | None = None):
        """Reads the headers.

        Args:
          directory: of a checkpoint.
          files: the files to read; None for those of the checkpoint's weights.

        Raises:
          FileNotFoundError: there are no safetensors files, or one that the index names is missing.
          ValueError: a file is damaged, or has weights of a dtype that is not supported.
        """
        self.directory = directory
        self.shapes: dict[str, Shape] = {}
        self.dtypes: dict[str, np.dtype] = {}
        self._places: dict[str, tuple[Path, int]] = {}
        for path in weight_files(directory) if files is None else files:
            self._read_header(path)

    def _read_header(self, path: Path) -> None:
        # The safetensors package checks the header; the weights are then read from where it says they are. The package
        # itself would map the file into memory, where its pages count as this process's, or read a tensor whole for
        # every piece of it.
        try:
            with safe_open(path, framework="numpy"):
                pass
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged or incomplete: {error}") from error
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(header_bytes))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if entry["dtype"] not in DTYPES:
                raise ValueError(
                    f"{name} in {path} has dtype {entry['dtype']}; supported dtypes of weights: {', '.join(DTYPES)}"
                )
            self.shapes[name] = tuple(entry["shape"])
            self.dtypes[name] = DTYPES[entry["dtype"]]
            self._places[name] = (path, 8 + header_bytes + entry["data_offsets"][0])

    def read(self, name: str, start: int, stop: int, columns: slice = ALL) -> np.ndarray:
        """Returns part of a tensor, along its first axis.

        Args:
          name: of the tensor.
          start, stop: rows.
          columns: of a matrix; where they are a part of it, no other bytes are read.

        Raises:
          ValueError: the file has become shorter since its header was read.
        """
        shape, dtype = self.shapes[name], self.dtypes[name]
        row_bytes = dtype.itemsize * math.prod(shape[1:])
        path, offset = self._places[name]
        first, last = 0, row_bytes
        if columns != ALL:
            first, last = columns.start * dtype.itemsize, columns.stop * dtype.itemsize
        width = last - first
        each = 1 if width < row_bytes else max(1, stop - start)  # Rows that lie together in the file.
        raw = np.empty((stop - start) * width, np.uint8)
        # Opened for every piece, so that threads need not share a place in the file.
        with path.open("rb", buffering=0) as file:
            for row in range(start, stop, each):
                part = raw[(row - start) * width :][: each * width]
                file.seek(offset + row * row_bytes + first)
                if file.readinto(part) != part.nbytes:
                    raise ValueError(f"{path} is damaged or incomplete: it ends inside {name}")
        return raw.view(dtype).reshape(stop - start, *(shape[1:] if columns == ALL else (-1,)))

    def read_into(
        self,
        name: str,
        view: np.ndarray,
        dtype: np.dtype,
        pool: Executor,
        *,
        start: int,
        rows: int,
        region: Box | None = None,
    ) -> None:
        """Writes rows of a tensor into a view, cast to a dtype.

        Args:
          name: of the tensor.
          view: as `Part.view` makes it, of an array of `BITS`.
          dtype: what those bits mean.
          pool: runs the pieces.
          start, rows: which rows of the tensor, along its first axis.
          region: of the view, outside which nothing is read or written; None for all.

        Raises:
          ValueError: the tensor holds NaN or infinity, or does so after the cast.
        """
        if not view.size:
            return
        each, region = rows // view.shape[0], region or tuple(slice(0, size) for size in view.shape)
        columns, inner = self._columns(name, view.shape, region)

        def move(piece: slice) -> None:
            weights = self.read(name, start + piece.start * each, start + piece.stop * each, columns)
            part = view[piece][:, *inner]
            if columns == ALL:
                weights = weights.reshape(len(part), *view.shape[1:])[:, *inner]
            cast_into(part, np.ascontiguousarray(weights).reshape(part.shape), dtype, f"{name} in {self.directory}")

        whole = view[region[0]]
        list(pool.map(move, (slice(region[0].start + p.start, region[0].start + p.stop) for p in pieces(whole))))

    def _columns(self, name: str, view: Shape, region: Box) -> tuple[slice, Box]:
        """Returns which columns of a matrix a region needs, `ALL` where rows are read whole, and its other axes.

        Rows are read whole too where what is needed of one is shorter than `RUN`: a disk gives no less.
        """
        shape, inner = self.shapes[name], region[1:]
        if len(shape) == 2:
            # The view's last axes are the tensor's columns, the first of them the one that may be divided.
            sizes = list(itertools.accumulate(reversed(view), operator.mul))
            first = len(view) - 1 - sizes.index(shape[1]) if shape[1] in sizes else 0
            width = math.prod(view[first + 1 :])
            rest = all(r == slice(0, n) for r, n in zip(region[first + 1 :], view[first + 1 :], strict=True))
            columns = slice(region[first].start * width, region[first].stop * width)
            needed = (columns.stop - columns.start) * self.dtypes[name].itemsize
            if first and rest and RUN <= needed < shape[1] * self.dtypes[name].itemsize:
                return columns, inner
        return ALL, inner

    def equal(self, one: str, other: str) -> bool:
        """Returns whether two tensors of the same shape and dtype hold the same bits."""
        width = BITS[self.dtypes[one].itemsize]

        def same(part: slice) -> bool:
            first, second = (self.read(name, part.start, part.stop).view(width) for name in (one, other))
            return np.array_equal(first, second)

        return all(map(same, pieces(np.broadcast_to(np.empty((), width), self.shapes[one]))))


def cast_into(view: np.ndarray, weights: np.ndarray, dtype: np.dtype, name: str) -> None:
    """Writes weights into a view, cast to a dtype.

    Args:
      view: of an array of `BITS`.
      weights: as many as the view has, in its order.
      dtype: what the view's bits mean.
      name: of the tensor, for errors.

    Raises:
      ValueError: a weight is NaN or infinite, or is so after the cast.
    """
    if not finite(weights):
        raise ValueError(f"{name} holds NaN or infinity")
    with np.errstate(over="ignore"):
        cast = weights.astype(dtype, copy=False)
    if cast is not weights and not finite(cast):
        raise ValueError(f"{name} holds values that {dtype} cannot hold")
    view[...] = _with_margin(cast.view(view.dtype).reshape(view.shape))


def pieces(view: np.ndarray) -> Iterator[slice]:
    """Yields slices of the first axis that together hold all of a view, each about `PIECE` bytes."""
    step = max(1, PIECE * len(view) // max(1, view.nbytes))
    for start in range(0, len(view), step):
        yield slice(start, min(start + step, len(view)))


def contiguous(view: np.ndarray) -> np.ndarray:
    """Returns a copy of a view whose axes may lie in memory in another order, in the order of its axes."""
    return np.ascontiguousarray(_with_margin(view))


def _with_margin(view: np.ndarray) -> np.ndarray:
    """Returns a copy in the view's order in memory, with a margin along the axis that lies closest together.

    Rows a power of two apart fall into the same lines of a cache. With a margin between them, turning the axes of a
    copy is three to six times as fast.
    """
    order = sorted(range(view.ndim), key=lambda axis: -view.strides[axis])
    *outer, inner = (view.shape[axis] for axis in order)
    memory = np.empty((*outer, inner + MARGIN), view.dtype)[..., :inner]
    copy = memory.transpose(np.argsort(order))
    copy[...] = view
    return copy


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
    found = contents(directory)
    raise FileNotFoundError(f"{directory} has no {WEIGHTS}{f'; it holds {found}' if found else ''}")


def write_shards(
    directory: Path,
    tensors: Mapping[str, tuple[Shape, np.dtype]],
    contents: Callable[[str], Iterator[np.ndarray]],
    max_shard_bytes: int,
) -> None:
    """Writes safetensors files and, where there are several, their index. Of several hosts the first one writes.

    The format is a JSON header and the tensors behind it. It is written here and not by the safetensors package, whose
    writer wants all tensors of a file in memory at once.

    Args:
      directory: where to.
      tensors: shape and dtype of each tensor, in the order they are written.
      contents: gives a tensor in contiguous pieces.
      max_shard_bytes: a file gets no further tensor that would make it longer.
    """
    shards = _plan(tensors, max_shard_bytes)
    if not is_first():
        for tensor in tensors:
            for _ in contents(tensor):  # It may take all hosts to give a tensor.
                pass
        return
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    names = names if len(shards) > 1 else [WEIGHTS]
    for name, shard in zip(names, shards, strict=True):
        with (directory / name).open("xb") as file:
            file.write(_header({tensor: tensors[tensor] for tensor in shard}))
            for tensor in shard:
                for piece in contents(tensor):
                    file.write(piece.view(BITS[piece.dtype.itemsize]).data)
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
    return math.prod(shape) * dtype.itemsize
