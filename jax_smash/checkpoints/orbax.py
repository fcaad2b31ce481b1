"""Orbax checkpoints: parameters as they are in memory, with their configuration beside them."""

import dataclasses
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Sharding, SingleDeviceSharding

from jax_smash.checkpoints.described import read_fields
from jax_smash.checkpoints.directory import new_directory
from jax_smash.checkpoints.fit import Shape, check_fit, dotted, one_dtype
from jax_smash.checkpoints.huggingface import CONFIG, MODEL_CONFIG, Place, params_bytes
from jax_smash.config import ModelConfig, from_fields
from jax_smash.models.families import ParamPath
from jax_smash.models.transformer import abstract_params
from jax_smash.quantise import check_plain

PARAMS = "params"

SHARES = 16
"""A checkpoint is read in about this many shares, one after another."""


def is_checkpoint(path: str | Path) -> bool:
    """Returns whether a directory is one that `save` wrote."""
    return (Path(path) / MODEL_CONFIG).is_file()


def save(
    path: str | Path, config: ModelConfig, params: nnx.State, *, original_config: Mapping[str, Any] | None = None
) -> None:
    """Saves parameters and their configuration. The directory appears whole or not at all.

    Args:
      path: a directory that is absent or empty.
      config: of the model.
      params: of the model.
      original_config: the Hugging Face `config.json` that the model came with, kept for the way back.

    Raises:
      FileExistsError: the directory has something in it.
      OSError: the disk is full.
      ValueError: weights are int8.
    """
    check_plain(params)
    with new_directory(path, params_bytes(params)) as work:
        write(work, config, params, original_config=original_config)


def write(
    directory: Path, config: ModelConfig, params: nnx.State, *, original_config: Mapping[str, Any] | None = None
) -> None:
    """Writes configuration and parameters into an existing directory; see `save`."""
    ocp = _orbax()
    (directory / MODEL_CONFIG).write_text(json.dumps(dataclasses.asdict(config), indent=2) + "\n")
    if original_config is not None:
        (directory / CONFIG).write_text(json.dumps(original_config, indent=2) + "\n")
    context = ocp.Context()
    # Weights hardly shrink, and all compressed copies would be in memory at once.
    context.array.saving.use_compression = False
    try:
        with context:
            ocp.save(directory / PARAMS, {dotted(p): v.get_value() for p, v in nnx.to_flat_state(params)})
    except ValueError as error:
        # What the disk said stands in the message only.
        code = re.search(r"os_error_code='(\d+)'", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(directory)) from error


def load(
    path: str | Path,
    *,
    dtype: Any = None,
    place: Place | None = None,
    shardings: Mapping[ParamPath, Sharding] | None = None,
) -> tuple[ModelConfig, nnx.GraphDef, nnx.State]:
    """Loads what `save` wrote, onto the default device.

    Args:
      path: the directory.
      dtype: of the weights in memory; None keeps the checkpoint's.
      place: puts a parameter where it belongs, as it is or quantised, from the default device.
      shardings: where each parameter lies among the devices of several hosts, as in `huggingface.load_params`.

    Raises:
      FileNotFoundError: there is no such checkpoint.
      ValueError: it is damaged; a parameter is missing, unexpected, of another shape, NaN or infinite.
    """
    directory = Path(path).expanduser().resolve()
    config = read_config(directory)
    stored = metadata(directory)
    _, abstract = abstract_params(config)
    shapes = {dotted(p): tuple(v.shape) for p, v in nnx.to_flat_state(abstract)}
    check_fit(directory, shapes, {name: tuple(array.shape) for name, array in stored.items()})
    weights = one_dtype(directory, {name: np.dtype(array.dtype) for name, array in stored.items()}, dtype)
    graphdef, abstract = abstract_params(config, weights)
    where = {dotted(p): p for p, _ in nnx.to_flat_state(abstract)}
    arrays: dict[str, Any] = {}
    lie = None if shardings is None else {dotted(p): sharding for p, sharding in shardings.items()}
    for share in _read(directory / PARAMS, shapes, weights, lie):
        for name, array in share.items():
            if not _finite(array):
                raise ValueError(f"{name} in {directory} holds NaN or infinity")
            arrays[name] = place(where[name], array) if place else array
    return (
        config,
        graphdef,
        nnx.from_flat_state([(p, v.replace(arrays[dotted(p)])) for p, v in nnx.to_flat_state(abstract)]),
    )


def original_config(path: str | Path) -> dict[str, Any] | None:
    """Returns the Hugging Face `config.json` that was saved along; None where there was none."""
    file = Path(path) / CONFIG
    return read_fields(file) if file.is_file() else None


def read_config(path: str | Path) -> ModelConfig:
    """Returns the configuration of a checkpoint.

    Raises:
      FileNotFoundError: there is no checkpoint.
      ValueError: its configuration is damaged.
    """
    file = Path(path) / MODEL_CONFIG
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing")
    try:
        return from_fields(json.loads(file.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged or of another version: {error}") from error


def metadata(path: str | Path) -> dict[str, Any]:
    """Returns shape and dtype of each parameter in a checkpoint, by name. Reads no weights.

    Raises:
      ValueError: the checkpoint is damaged.
    """
    directory = Path(path).expanduser().resolve()
    try:
        return _orbax().metadata(directory / PARAMS).metadata
    except Exception as error:
        raise ValueError(f"{directory / PARAMS} is damaged or incomplete: {_line(error)}") from error


def _read(
    path: Path, shapes: Mapping[str, Shape], dtype: np.dtype, lie: Mapping[str, Sharding] | None
) -> Iterator[dict[str, jax.Array]]:
    """Yields all parameters, a share at a time: what is being read is in memory about three times."""
    ocp = _orbax()
    lie = lie or dict.fromkeys(shapes, SingleDeviceSharding(jax.local_devices()[0]))
    for names in _shares(shapes):
        target = dict.fromkeys(shapes, ocp.PLACEHOLDER)
        target |= {name: jax.ShapeDtypeStruct(shapes[name], dtype, sharding=lie[name]) for name in names}
        try:
            found = ocp.load(path, target)
        except Exception as error:
            raise ValueError(f"{path} is damaged or incomplete: {_line(error)}") from error
        yield {name: found[name] for name in names}


def _shares(shapes: Mapping[str, Shape]) -> list[list[str]]:
    """Returns the names in groups of at most a `SHARES`-th of all weights, the longest first, or of one."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    groups: list[list[str]] = [[]]
    room = limit = sum(sizes.values()) / SHARES
    for name in sorted(sizes, key=lambda n: -sizes[n]):
        if groups[-1] and sizes[name] > room:
            groups.append([])
            room = limit
        groups[-1].append(name)
        room -= sizes[name]
    return groups


def _orbax() -> Any:
    from orbax.checkpoint import v1  # Takes a second to import.

    # It logs every error with a traceback, and raises it too.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    return v1


@jax.jit
def _finite(array: jax.Array) -> jax.Array:
    return jnp.isfinite(array).all()


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
