"""Token Recycling's matrix on disk, so that another run begins with what this one learned."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

KIND = "jax_smash successors"
"""What the file says it is."""

FORMAT = "1"
"""Of the files. A file of another format is refused."""


def save_successors(
    path: Path, matrix: Int[Array, "V k"], *, tokenizer: Any, probability: Float[Array, "V k"] | None = None
) -> None:
    """Writes a matrix of successors in place of an older file, whole or not at all.

    Args:
      path: a safetensors file.
      matrix: ids of each token's likeliest successors, −1 where none is known.
      tokenizer: that the ids belong to; None where the model has none.
      probability: of each successor, 0 where none is known; None where it is not kept.

    Raises:
      OSError: it cannot be written; an older file is still there.
    """
    metadata = {"kind": KIND, "format": FORMAT, "method": "recycling", "tokenizer": tokenizer_digest(tokenizer)}
    arrays = {"matrix": np.asarray(jax.device_get(matrix), np.int32)}
    if probability is not None:
        arrays["probability"] = np.asarray(jax.device_get(probability), np.float32)
    content = save(arrays, metadata)
    check_place(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_successors(
    path: Path, *, vocab_size: int, width: int, tokenizer: Any
) -> tuple[Int[np.ndarray, "V k"], Float[np.ndarray, "V k"] | None]:
    """Returns the matrix that a file holds, and the probabilities of the successors where it holds them.

    Args:
      path: of `save_successors`.
      vocab_size: V, the model's.
      width: k, successors that the drafter keeps of a token.
      tokenizer: the model's; None where it has none.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is damaged or something else; or it was saved with another tokenizer, vocabulary or width.
    """
    metadata, matrix, probability = _read(path)
    if metadata.get("kind") != KIND:
        raise ValueError(f"{path} holds no matrix of successors: only what was saved for a warm start can be loaded")
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} must have format {FORMAT}; got {metadata.get('format')}")
    if matrix.ndim != 2 or matrix.dtype != np.int32 or matrix.min(initial=-1) < -1:
        raise ValueError(f"{path} is damaged: matrix must be rows of token ids; got {matrix.dtype}{matrix.shape}")
    if matrix.shape[0] != vocab_size:
        raise ValueError(f"{path} must be of the model's vocabulary of {vocab_size}; got {matrix.shape[0]}")
    if metadata.get("tokenizer") != tokenizer_digest(tokenizer):
        raise ValueError(f"{path} was saved with another tokenizer of {vocab_size} tokens")
    if matrix.shape[1] != width:
        raise ValueError(f"{path} must hold {width} successors of each token; got {matrix.shape[1]}")
    if matrix.max(initial=-1) >= vocab_size:
        raise ValueError(f"{path} is damaged: ids must be below {vocab_size}; got {matrix.max()}")
    if probability is not None:
        _check_probability(path, probability, matrix.shape)
    return matrix, probability


def _check_probability(path: Path, probability: np.ndarray, shape: tuple[int, ...]) -> None:
    if probability.shape != shape or probability.dtype != np.float32:
        said = f"{probability.dtype}{probability.shape}"
        raise ValueError(f"{path} is damaged: probability must be float32 as many as there are ids; got {said}")
    if not ((probability >= 0) & (probability <= 1)).all():
        raise ValueError(
            f"{path} is damaged: probabilities must be from 0 to 1; got {probability.min()} to {probability.max()}"
        )


def check_place(path: Path) -> None:
    """Checks that a file can be made at a place.

    Raises:
      FileNotFoundError: its directory does not exist.
      IsADirectoryError, PermissionError: the place is a directory, or the directory is read-only.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} needs a directory {path.parent}; there is none")
    if path.is_dir():
        raise IsADirectoryError(f"{path} must be a file; it is a directory")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"{path} cannot be made: {path.parent} is read-only")


def tokenizer_digest(tokenizer: Any) -> str:
    """Returns a hash of which text has which id; `none` where there is no tokenizer."""
    if tokenizer is None:
        return "none"
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()), ensure_ascii=True)
    return hashlib.sha256(vocabulary.encode()).hexdigest()[:16]


def _read(path: Path) -> tuple[dict[str, str], np.ndarray, np.ndarray | None]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file: there is nothing to start from")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.get("kind") != KIND:
                return metadata, np.zeros((0, 0), np.int32), None
            probability = file.get_tensor("probability") if "probability" in set(file.keys()) else None
            return metadata, file.get_tensor("matrix"), probability
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged, or no safetensors file: {error}") from error
