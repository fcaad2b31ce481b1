"""GGUF files: metadata and tensors as they are stored."""

import functools
import os
import re
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

SUFFIX = ".gguf"
MAGIC = b"GGUF"
VERSIONS = (2, 3)
"""Versions of the format that the `gguf` package reads."""

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GgufFile:
    """One model's metadata and tensors, mapped into memory and not yet read.

    Attributes:
      path: of the file; of the first one where the model is split.
      architecture: what `general.architecture` says.
      tensors: the `gguf.ReaderTensor` of each tensor, by name, of all parts.
    """

    def __init__(self, paths: Sequence[Path]):
        """Reads the headers of a file, or of all parts of a split one in order.

        Raises:
          ValueError: a file is damaged, cut off, or of a kind that is not supported.
        """
        self.path = paths[0]
        readers = [_read(part) for part in paths]
        self._fields, self._arrays = readers[0].fields, readers[0].arrays
        self.architecture = self.get("general.architecture")
        if not isinstance(self.architecture, str):
            raise ValueError(f"{self.path} does not say what architecture it holds: general.architecture is missing")
        self.tensors = {tensor.name: tensor for reader in readers for tensor in reader.tensors}
        if (count := self.get("split.count")) is not None and count != len(paths):
            raise ValueError(f"{self.path} must be one of {count} files, as its split.count says; found {len(paths)}")
        if (count := self.get("split.tensors.count")) is not None and count != len(self.tensors):
            raise ValueError(f"{self.path} and its other parts must hold {count} tensors; found {len(self.tensors)}")
        _check_types(self)

    def get(self, key: str) -> Any:
        """Returns the value of a metadata key; None where there is no such key."""
        if key in self._arrays:
            return self._arrays[key]
        field = self._fields.get(key)
        return None if field is None else field.contents()

    def own(self, key: str) -> Any:
        """Returns the value of a key of the model's architecture, such as `block_count`; None where there is none."""
        return self.get(f"{self.architecture}.{key}")

    def decoded(self, name: str) -> np.ndarray:
        """Returns a whole tensor as float32, its axes in the order of a checkpoint."""
        import gguf

        tensor = self.tensors[name]
        return np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)


def is_gguf(path: Path) -> bool:
    """Returns whether a path is that of a GGUF file."""
    return path.suffix == SUFFIX and not path.is_dir()


def find_gguf(directory: Path) -> Path | None:
    """Returns the GGUF file of a directory, the first of a split one; None where there is none.

    Raises:
      ValueError: the directory holds several models.
    """
    models = sorted({_first(file) for file in directory.glob(f"*{SUFFIX}") if file.is_file()})
    if len(models) > 1:
        names = ", ".join(model.name for model in models)
        raise ValueError(f"{directory} holds {len(models)} GGUF models: {names}; name the file")
    return models[0] if models else None


def open_gguf(path: Path) -> GgufFile:
    """Opens a GGUF file. A file that has not changed is not read a second time.

    Raises:
      FileNotFoundError: it is missing, or a part of it.
      ValueError: as `GgufFile` says.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    return _open(tuple((part, (status := part.stat()).st_mtime_ns, status.st_size) for part in _parts(path.resolve())))


@functools.lru_cache(maxsize=2)  # A model and the one that drafts for it.
def _open(parts: tuple[tuple[Path, int, int], ...]) -> GgufFile:
    """Opens files, each with when it was changed and its size."""
    return GgufFile([path for path, _, _ in parts])


def _first(path: Path) -> Path:
    """Returns the first file of the model that a file is a part of."""
    match = _PART.fullmatch(path.name)
    return path.with_name(f"{match['stem']}-00001-of-{match['count']}{SUFFIX}") if match else path


def _parts(path: Path) -> list[Path]:
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    stem = match["stem"]
    paths = [path.with_name(f"{stem}-{i + 1:05}-of-{count:05}{SUFFIX}") for i in range(count)]
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise FileNotFoundError(f"{path.parent} has {count - len(missing)} of {count} parts; missing: {missing[0]}")
    return paths


def _read(path: Path) -> Any:
    from jax_smash.checkpoints.gguf.reader import Reader

    _check_start(path)
    try:
        return Reader(path)
    except (ValueError, KeyError, IndexError, TypeError, ArithmeticError, struct.error) as error:
        if match := re.search(r"(\d+)\)? is not a valid GGMLQuantizationType", str(error)):
            raise ValueError(f"{path} has a tensor of type {match[1]}, which the gguf package does not know") from error
        raise ValueError(
            f"{path} is damaged or cut off: its {os.path.getsize(path):,} bytes are no GGUF model"
        ) from error


def _check_start(path: Path) -> None:
    """Checks the first bytes: what the file is, its byte order and its version."""
    with path.open("rb") as file:
        start = file.read(8)
    if start[:4] != MAGIC:
        raise ValueError(f"{path} is not a GGUF file: it begins with {start[:4]!r}, not {MAGIC!r}")
    if len(start) < 8:
        raise ValueError(f"{path} is damaged or cut off: it ends after {len(start)} bytes")
    little, big = (int.from_bytes(start[4:], order) for order in ("little", "big"))  # type: ignore[arg-type]
    native, swapped = (little, big) if sys.byteorder == "little" else (big, little)
    if swapped in VERSIONS and native not in VERSIONS:
        raise ValueError(f"{path} is not {sys.byteorder}-endian, as this machine is; convert it there")
    if native not in VERSIONS:
        raise ValueError(f"{path} has GGUF version {native}; supported: {', '.join(map(str, VERSIONS))}")


def _check_types(file: GgufFile) -> None:
    """Checks that every tensor is of a type that can be decoded, before any is."""
    import gguf

    # One tensor of each type is enough: two dozen types, hundreds of tensors.
    for kind, name in {tensor.tensor_type: name for name, tensor in file.tensors.items()}.items():
        try:
            gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError as error:
            raise ValueError(
                f"{name} in {file.path} has type {kind.name}, which the gguf package cannot decode"
            ) from error
