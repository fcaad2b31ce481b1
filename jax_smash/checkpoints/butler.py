"""A predictor of attention as two files in a folder: `butler.json` and `butler.safetensors`.

The first holds `format`, the SHA-256 of the second, the fingerprint of the base's weights, `kind`, and the fields of
the configuration of that form. The second holds a tensor for each parameter by its dotted name.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from jax_smash.checkpoints.described import (
    both_or_neither,
    check_finite,
    check_savable,
    dtype_of,
    opened,
    read_fields,
    sha256,
    take_trained_length,
)
from jax_smash.checkpoints.fit import check_fit, dotted
from jax_smash.config import ModelConfig
from jax_smash.models.definition import NnxModel
from jax_smash.models.predictors import PredictorConfig, abstract_predictor, predictor_config
from jax_smash.pytree import size
from jax_smash.quantise import check_plain
from jax_smash.sharding import on_host

CONFIG, WEIGHTS = "butler.json", "butler.safetensors"

FORMAT = 1
"""Of the files; a reader refuses others."""

SHOWN = 16
"""Letters of a fingerprint that an error shows."""


@dataclasses.dataclass(frozen=True)
class ButlerModules:
    """A predictor for a base, ready to be bound.

    Attributes:
      config: its form and sizes.
      definition: its structure.
      params: its parameters.
      base_fingerprint: of the base's weights that it was trained with; empty where it goes with any.
      trained_length: entries of the texts that it was trained on; None where nobody says.
    """

    config: PredictorConfig
    definition: NnxModel
    params: nnx.State
    base_fingerprint: str
    trained_length: int | None = None

    def __repr__(self) -> str:
        """Says how large it is, and prints no weights."""
        return f"ButlerModules({self.config.kind}, {size(self.params)})"


@dataclasses.dataclass(frozen=True)
class ButlerDescription:
    """What `butler.json` says.

    Attributes:
      config, base_fingerprint, trained_length: as of `ButlerModules`.
      weights_sha256: of the file beside it.
    """

    config: PredictorConfig
    base_fingerprint: str
    weights_sha256: str
    trained_length: int | None = None


def save_butler(
    folder: str | Path,
    config: PredictorConfig,
    params: nnx.State,
    *,
    base_fingerprint: str,
    trained_length: int | None = None,
) -> None:
    """Saves a predictor as `butler.json` and `butler.safetensors`, whole or not at all; older ones are replaced.

    Args:
      folder: made where it is missing.
      config: of the predictor.
      params: its parameters, in the dtype that they are saved in.
      base_fingerprint: `checkpoints.fingerprint` of the base's weights that it was trained with.
      trained_length: entries of the texts that it was trained on; None where nobody says.

    Raises:
      ValueError: weights are int8, not finite or of a dtype that no checkpoint has, or not the configuration's; the
        fingerprint is empty.
      OSError: the disk is full, or the folder cannot be made.
    """
    if not base_fingerprint:
        raise ValueError("base_fingerprint must be that of the base's weights; got an empty text")
    check_plain(params)
    tensors = {dotted(path): on_host(variable.get_value()) for path, variable in nnx.to_flat_state(params)}
    check_fit("memory", _shapes(config), {name: array.shape for name, array in tensors.items()})
    check_savable(tensors)
    folder = _folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    nbytes = sum(array.nbytes for array in tensors.values())
    with both_or_neither(folder, CONFIG, WEIGHTS, nbytes) as (fields_file, weights_file):
        # Contiguous: the writer takes an array's bytes as they lie in memory.
        save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, weights_file)
        told: dict[str, Any] = {"format": FORMAT, "weights_sha256": sha256(weights_file)}
        told["base_fingerprint"] = base_fingerprint
        if trained_length is not None:
            told["trained_length"] = trained_length
        fields_file.write_text(json.dumps({**told, "kind": config.kind, **config.to_fields()}, indent=2) + "\n")


def load_butler(
    folder: str | Path, base: ModelConfig, base_fingerprint: str | None, *, dtype: Any = None
) -> ButlerModules:
    """Loads what `save_butler` wrote, onto the default device.

    Args:
      folder: that holds the two files.
      base: configuration of the base at hand.
      base_fingerprint: of its weights; None where nobody knows it, which is refused.
      dtype: of the weights in memory; None keeps the files'.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: one is damaged, or not of the same save as the other; the predictor was trained with another base; a
        tensor is missing, unexpected, of another shape, NaN or infinite. All but the values of tensors is checked
        before a tensor is read.
    """
    described, file = read_butler(folder), _folder(folder) / WEIGHTS
    config = described.config
    _check_base(described, base, base_fingerprint, file.with_name(CONFIG))
    with opened(file, described.weights_sha256, CONFIG) as stored:
        names = list(stored.keys())
        check_fit(file, _shapes(config), {name: tuple(stored.get_slice(name).get_shape()) for name in names})
        tensors = {name: stored.get_tensor(name) for name in names}
    made_of = dtype_of(file, tensors, dtype)
    check_finite(file, tensors, made_of)
    graphdef, abstract = abstract_predictor(config, made_of)
    held = {name: jax.device_put(array.astype(made_of, copy=False)) for name, array in tensors.items()}
    leaves = [(path, v.replace(held[dotted(path)])) for path, v in nnx.to_flat_state(abstract)]
    params = nnx.from_flat_state(leaves)
    return ButlerModules(
        config, NnxModel(graphdef), params, described.base_fingerprint, trained_length=described.trained_length
    )


def read_butler(folder: str | Path) -> ButlerDescription:
    """Returns what a folder's `butler.json` says of its predictor.

    Raises:
      FileNotFoundError: it is missing.
      ValueError: it is damaged.
    """
    file = _folder(folder) / CONFIG
    fields = read_fields(file)
    if (version := fields.pop("format", None)) != FORMAT:
        raise ValueError(f"{file} must have format {FORMAT}; got {version!r}")
    told = {name: fields.pop(name, None) for name in ("base_fingerprint", "weights_sha256")}
    for name, text in told.items():
        if not isinstance(text, str) or not text:
            raise ValueError(f"{file}: {name} must be a text; got {text!r}")
    length = take_trained_length(file, fields)
    try:
        config = predictor_config(fields.pop("kind", None), fields)
        return ButlerDescription(config, **told, trained_length=length)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def is_butler(folder: str | Path) -> bool:
    """Returns whether a folder holds a predictor."""
    return (_folder(folder) / CONFIG).is_file()


def _check_base(described: ButlerDescription, base: ModelConfig, found: str | None, file: Path) -> None:
    try:
        described.config.check_base(base)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    if found != described.base_fingerprint:
        expected, got = described.base_fingerprint[:SHOWN], "none" if found is None else found[:SHOWN]
        raise ValueError(
            f"{file}: the predictor was trained with a base whose weights have fingerprint {expected}; got {got}"
        )


def _folder(folder: str | Path) -> Path:
    return Path(folder).expanduser().resolve()


def _shapes(config: PredictorConfig) -> dict[str, tuple[int, ...]]:
    _, abstract = abstract_predictor(config)
    return {dotted(path): tuple(variable.shape) for path, variable in nnx.to_flat_state(abstract)}
