"""Medusa's heads as two files in a folder: `medusa.json` and `medusa.safetensors`.

The first holds `format`, the SHA-256 of the second, the fingerprint of the target's weights where the heads were
trained for some, the length of the rows that they were trained on where somebody told it, and the fields of
`MedusaConfig`. The second holds `heads.N.blocks.M.w [D, D]`, `heads.N.blocks.M.b [D]` and, of heads with rows of their
own, `heads.N.head [V, D]`.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Int

from jax_smash.checkpoints.fit import dotted
from jax_smash.checkpoints.module_files import Described, ModuleFiles
from jax_smash.config import ModelConfig
from jax_smash.models.definition import NnxModel
from jax_smash.models.medusa import MedusaConfig, abstract_medusa, random_medusa
from jax_smash.pytree import size

CONFIG, WEIGHTS = "medusa.json", "medusa.safetensors"

FILES = ModuleFiles(
    description=CONFIG, weights=WEIGHTS, format=1, config=MedusaConfig.from_fields, abstract=abstract_medusa
)


@dataclasses.dataclass(frozen=True)
class MedusaModules:
    """Heads, ready to be bound.

    Attributes:
      config: their sizes, and those of the target that they fit.
      definition: their structure.
      params: their parameters.
      base_fingerprint: of the target's weights that they were trained for; empty where nobody told.
      tokens: that they can say by the target's head, in rising order; None for all.
      trained_length: tokens of the rows that they were trained on; None where nobody told.
    """

    config: MedusaConfig
    definition: NnxModel
    params: nnx.State
    base_fingerprint: str = ""
    tokens: Int[np.ndarray, "X"] | None = None
    trained_length: int | None = None

    def __repr__(self) -> str:
        """Says how large they are, and prints no weights."""
        return f"MedusaModules({size(self.params)}, {self.config.num_heads} heads)"


def random_heads(target: ModelConfig, *, seed: int = 0, dtype: Any = np.float32) -> MedusaModules:
    """Makes four heads with rows of their own for a target, with random weights."""
    config = MedusaConfig(target.vocab_size, target.d_model)
    graphdef, params = random_medusa(config, seed, dtype)
    return MedusaModules(config=config, definition=NnxModel(graphdef), params=params)


def save_medusa(
    folder: str | Path,
    config: MedusaConfig,
    params: nnx.State,
    *,
    base_fingerprint: str = "",
    tokens: Int[np.ndarray, "X"] | None = None,
    trained_length: int | None = None,
) -> None:
    """Saves heads as `medusa.json` and `medusa.safetensors`, whole or not at all; older ones are replaced.

    Args:
      folder: made where it is missing.
      config: of the heads.
      params: their parameters, in the dtype that they are saved in.
      base_fingerprint: `checkpoints.fingerprint` of the target's weights; without, they draft for any of that shape.
      tokens, trained_length: as of `MedusaModules`.

    Raises:
      ValueError: weights are int8, not finite or of a dtype that no checkpoint has, or not the configuration's.
      OSError: the disk is full, or the folder cannot be made.
    """
    FILES.save(folder, config, params, base_fingerprint, tokens, trained_length)


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
    return FILES.load(folder, dtype).made(MedusaModules)


def medusa_of(config: MedusaConfig, tensors: dict[str, np.ndarray], dtype: Any, **told: Any) -> MedusaModules:
    """Returns heads of tensors by their dotted names, on the default device; `told` are further attributes."""
    graphdef, abstract = abstract_medusa(config, dtype)
    leaves = [(path, v.replace(jax.device_put(tensors[dotted(path)]))) for path, v in nnx.to_flat_state(abstract)]
    return MedusaModules(config, NnxModel(graphdef), nnx.from_flat_state(leaves), **told)


def read_medusa(folder: str | Path) -> Described:
    """Returns what a folder says of its heads; weights are not read.

    Raises:
      FileNotFoundError: `medusa.json` is missing.
      ValueError: it is damaged.
    """
    return FILES.read(folder)


def shapes_of(config: MedusaConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter by its dotted name."""
    return {dotted(path): tuple(v.shape) for path, v in nnx.to_flat_state(abstract_medusa(config)[1])}
