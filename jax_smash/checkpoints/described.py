"""Weights in a safetensors file, and a JSON file beside it that describes them: written together, and read together."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from jax_smash.checkpoints.directory import FULL
from jax_smash.checkpoints.fit import DTYPES, one_dtype
from jax_smash.checkpoints.shards import finite

ROOM = 2**16
"""Bytes beside the weights that a folder must have room for."""


def check_savable(tensors: Mapping[str, np.ndarray]) -> None:
    """Checks weights before they are written.

    Raises:
      ValueError: one is not finite, or of a dtype that no checkpoint has.
    """
    for name, array in tensors.items():
        if array.dtype not in DTYPES.values():
            raise ValueError(f"{name} must be one of {', '.join(map(str, DTYPES.values()))}; got {array.dtype}")
        if not finite(array):
            raise ValueError(f"{name} holds NaN or infinity")


@contextlib.contextmanager
def both_or_neither(folder: Path, description: str, weights: str, size: int) -> Iterator[tuple[Path, Path]]:
    """Gives two files to fill, and moves them to their places when both are complete.

    Args:
      folder: that they come into.
      description, weights: names of the two. The first must hold the hash of the second, as `sha256` returns it.
      size: bytes of the weights.

    Raises:
      OSError: there is no room.
    """
    size += ROOM
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OSError(errno.ENOSPC, f"no room to save: {size} bytes are needed, {free} are free", str(folder))
    parts = [folder / f".{name}.{os.getpid()}.part" for name in (description, weights)]
    try:
        yield parts[0], parts[1]
        shutil.copymode(*parts)  # The writer of tensors lets nobody else read.
        for part in parts:
            with part.open("rb") as file:
                os.fsync(file.fileno())
        # The hash in the first tells a reader between the two moves that they do not belong together.
        os.replace(parts[1], folder / weights)
        os.replace(parts[0], folder / description)
    except SafetensorError as error:  # What the disk said stands in the message only.
        raise OSError(errno.EIO, str(error), str(folder)) from error
    except OSError as error:
        if error.errno in FULL:
            raise OSError(error.errno, f"no room to save: {os.strerror(error.errno)}", str(folder)) from error
        raise
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def read_fields(file: Path) -> dict[str, Any]:
    """Returns what a description says.

    Raises:
      FileNotFoundError: it is missing.
      ValueError: it is damaged.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing")
    try:
        fields = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is damaged: it must be JSON ({error})") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{file} must hold a JSON object; got {type(fields).__name__}")
    return fields


def take_trained_length(file: Path, fields: dict[str, Any]) -> int | None:
    """Takes the length of the texts that modules were trained on out of a description; None where it tells none.

    Args:
      file: of the description, named in errors.
      fields: that it has.

    Raises:
      ValueError: it is no length.
    """
    length = fields.pop("trained_length", None)
    if length is not None and (type(length) is not int or length < 1):
        raise ValueError(f"{file}: trained_length must be a number of entries from 1; got {length!r}")
    return length


@contextlib.contextmanager
def opened(file: Path, digest: str, description: str) -> Iterator[Any]:
    """Gives the weights that a description belongs to, as safetensors opens them; nothing of them is read yet.

    Args:
      file: of the weights.
      digest: its hash, as the description has it.
      description: name of the file beside it.

    Raises:
      FileNotFoundError: the file is missing.
      ValueError: it is damaged, or of another save than the description.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing; {description} is there")
    if (actual := sha256(file)) != digest:
        raise ValueError(
            f"{file} is damaged, or was not saved with the {description} beside it: "
            f"its SHA-256 must be {digest}; got {actual}"
        )
    try:
        with safe_open(file, framework="numpy") as tensors:
            yield tensors
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: {error}") from error


def dtype_of(file: Path, tensors: Mapping[str, np.ndarray], wanted: Any) -> np.dtype:
    """Returns the dtype that weights get in memory.

    Args:
      file: that they are in, named in errors.
      tensors: the weights.
      wanted: the caller's choice; None keeps the file's.

    Raises:
      ValueError: a dtype is not supported, or the tensors' differ and none was chosen.
    """
    for name, array in tensors.items():
        if array.dtype not in DTYPES.values():
            supported = ", ".join(map(str, DTYPES.values()))
            raise ValueError(f"{name} in {file} has dtype {array.dtype}; supported dtypes of weights: {supported}")
    return one_dtype(file, {name: array.dtype for name, array in tensors.items()}, wanted)


def check_finite(file: Path, tensors: Mapping[str, np.ndarray], dtype: np.dtype) -> None:
    """Checks that weights are numbers, and are so in a dtype too.

    Raises:
      ValueError: one is NaN or infinite, or is so after the cast.
    """
    for name, array in tensors.items():
        if not finite(array):
            raise ValueError(f"{name} in {file} holds NaN or infinity")
        with np.errstate(over="ignore"):
            cast = array.astype(dtype, copy=False)
        if cast is not array and not finite(cast):
            raise ValueError(f"{name} in {file} holds values that {dtype} cannot hold")


def sha256(file: Path) -> str:
    """Returns the SHA-256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
