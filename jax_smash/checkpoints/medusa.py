"""Medusa's heads as two files in a folder: `medusa.json` and `medusa.safetensors`.

The first holds `format`, the SHA-256 of the second, the fingerprint of the target's weights where the heads were
trained for some, and the fields of `MedusaConfig`. The second holds `heads.N.blocks.M.w [D, D]`,
`heads.N.blocks.M.b [D]` and, of heads with rows of their own, `heads.N.head [V, D]`.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

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
)
from jax_smash.checkpoints.fit import check_fit, dotted
from jax_smash.config import ModelConfig
from jax_smash.models.definition import NnxModel
from jax_smash.models.medusa import MedusaConfig, abstract_medusa, random_medusa
from jax_smash.pytree import size
from jax_smash.quantise import check_plain

CONFIG, WEIGHTS = "medusa.json", "medusa.safetensors"

FORMAT = 1
"""Of the files; a reader refuses others."""


@dataclasses.dataclass(frozen=True)
class MedusaModules:
    """Heads, ready to be bound.

    Attributes:
      config: their sizes, and those of the target that they fit.
      definition: their structure.
      params: their parameters.
      base_fingerprint: of the target's weights that they were trained for; empty where nobody told.
    """

    config: MedusaConfig
    definition: NnxModel
    params: nnx.State
    base_fingerprint: str = ""

    def __repr__(self) -> str:
        """Says how large they are, and prints no weights."""
        return f"MedusaModules({size(self.params)}, {self.config.num_heads} heads)"


class MedusaDescription(NamedTuple):
    """What `medusa.json` says.

    Attributes:
      config: of the heads.
      weights_sha256: of the file beside it.
      base_fingerprint: as of `MedusaModules`.
    """

    config: MedusaConfig
    weights_sha256: str
    base_fingerprint: str


def random_heads(target: ModelConfig, *, seed: int = 0, dtype: Any = np.float32) -> MedusaModules:
    """Makes four heads with rows of their own for a target, with random weights."""
    config = MedusaConfig(target.vocab_size, target.d_model)
    graphdef, params = random_medusa(config, seed, dtype)
    return MedusaModules(config=config, definition=NnxModel(graphdef), params=params)


def save_medusa(folder: str | Path, config: MedusaConfig, params: nnx.State, *, base_fingerprint: str = "") -> None:
    """Saves heads as `medusa.json` and `medusa.safetensors`, whole or not at all; older ones are replaced.

    Args:
      folder: made where it is missing.
      config: of the heads.
      params: their parameters, in the dtype that they are saved in.
      base_fingerprint: `checkpoints.fingerprint` of the target's weights; without, they draft for any of that shape.

    Raises:
      ValueError: weights are int8, not finite or of a dtype that no checkpoint has, or not the configuration's.
      OSError: the disk is full, or the folder cannot be made.
    """
    check_plain(params)
    tensors = {dotted(path): np.asarray(variable.get_value()) for path, variable in nnx.to_flat_state(params)}
    check_fit("memory", shapes_of(config), {name: array.shape for name, array in tensors.items()})
    check_savable(tensors)
    folder = Path(folder).expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    nbytes = sum(array.nbytes for array in tensors.values())
    with both_or_neither(folder, CONFIG, WEIGHTS, nbytes) as (fields_file, weights_file):
        # Contiguous: the writer takes an array's bytes as they lie in memory.
        save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, weights_file)
        told = {"format": FORMAT, "weights_sha256": sha256(weights_file), "base_fingerprint": base_fingerprint}
        fields_file.write_text(json.dumps(told | config.to_fields(), indent=2) + "\n")


def load_medusa(folder: str | Path, *, dtype: Any = None) -> MedusaModules:
    """Loads what `save_medusa` wrote, onto the default device.

    Args:
      folder: that holds the two files.
      dtype: of the weights in memory; None keeps the files'.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: one is damaged, or not of the same save as the other; a tensor is missing, unexpected, of another
        shape, NaN or infinite. Shapes are compared before a tensor is read.
    """
    config, digest, mark = read_medusa(folder)
    file = Path(folder).expanduser().resolve() / WEIGHTS
    with opened(file, digest, CONFIG) as stored:
        names = list(stored.keys())
        check_fit(file, shapes_of(config), {name: tuple(stored.get_slice(name).get_shape()) for name in names})
        tensors = {name: stored.get_tensor(name) for name in names}
    made_of = dtype_of(file, tensors, dtype)
    check_finite(file, tensors)
    return medusa_of(config, {name: x.astype(made_of, copy=False) for name, x in tensors.items()}, made_of, mark)


def medusa_of(config: MedusaConfig, tensors: dict[str, np.ndarray], dtype: Any, base_fingerprint: str) -> MedusaModules:
    """Returns heads of tensors by their dotted names, on the default device."""
    graphdef, abstract = abstract_medusa(config, dtype)
    leaves = [(path, v.replace(jax.device_put(tensors[dotted(path)]))) for path, v in nnx.to_flat_state(abstract)]
    return MedusaModules(config, NnxModel(graphdef), nnx.from_flat_state(leaves), base_fingerprint)


def read_medusa(folder: str | Path) -> MedusaDescription:
    """Returns what a folder says of its heads; weights are not read.

    Raises:
      FileNotFoundError: `medusa.json` is missing.
      ValueError: it is damaged.
    """
    file = Path(folder).expanduser().resolve() / CONFIG
    fields = read_fields(file)
    if (version := fields.pop("format", None)) != FORMAT:
        raise ValueError(f"{file} must have format {FORMAT}; got {version!r}")
    told = {name: fields.pop(name, None) for name in ("weights_sha256", "base_fingerprint")}
    for name, mark in told.items():
        if not isinstance(mark, str):
            raise ValueError(f"{file}: {name} must be a text; got {mark!r}")
    try:
        return MedusaDescription(MedusaConfig.from_fields(fields), **told)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def shapes_of(config: MedusaConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter by its dotted name."""
    return {dotted(path): tuple(v.shape) for path, v in nnx.to_flat_state(abstract_medusa(config)[1])}
