"""An EAGLE-1 drafter as two files in a folder: `eagle1.json` and `eagle1.safetensors`.

The first holds `format`, the SHA-256 of the second, the fingerprint of the target's weights where the drafter was
trained for some, the length of the rows that it was trained on where somebody told it, and the fields of
`Eagle1Config`. The second holds `w_join [2·D, D]`, the token's vector before the feature, `b_join [D]` where there is
one, `attention.w_qkv` (and `attention.b_qkv`), `attention.w_o`, `mlp.w_gate_up`, `mlp.w_down` and `mlp_norm.scale`.
"""

import dataclasses
from collections.abc import Mapping
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
from jax_smash.models.eagle1 import Eagle1Config, abstract_eagle1, random_eagle1
from jax_smash.pytree import size

CONFIG, WEIGHTS = "eagle1.json", "eagle1.safetensors"

FILES = ModuleFiles(
    description=CONFIG, weights=WEIGHTS, format=1, config=Eagle1Config.from_fields, abstract=abstract_eagle1
)


@dataclasses.dataclass(frozen=True)
class Eagle1Modules:
    """A drafter, ready to be bound.

    Attributes:
      config: its sizes, and those of the target that it fits.
      definition: its structure.
      params: its parameters.
      base_fingerprint: of the target's weights that it was trained for; empty where nobody told.
      tokens: that it can say by the target's head, in rising order; None for all.
      trained_length: tokens of the rows that it was trained on; None where nobody told.
    """

    config: Eagle1Config
    definition: NnxModel
    params: nnx.State
    base_fingerprint: str = ""
    tokens: Int[np.ndarray, "X"] | None = None
    trained_length: int | None = None

    def __repr__(self) -> str:
        """Says how large it is, and prints no weights."""
        return f"Eagle1Modules({size(self.params)})"


def random_eagle1_modules(target: ModelConfig, *, seed: int = 0, dtype: Any = np.float32) -> Eagle1Modules:
    """Makes a drafter of the usual sizes for a target, with random weights."""
    config = Eagle1Config.for_target(target)
    structure, params = random_eagle1(config, seed, dtype)
    return Eagle1Modules(config=config, definition=NnxModel(structure), params=params)


def save_eagle1(
    folder: str | Path,
    config: Eagle1Config,
    params: nnx.State,
    *,
    base_fingerprint: str = "",
    tokens: Int[np.ndarray, "X"] | None = None,
    trained_length: int | None = None,
) -> None:
    """Saves a drafter as `eagle1.json` and `eagle1.safetensors`, whole or not at all; older ones are replaced.

    Args:
      folder: made where it is missing.
      config: of the drafter.
      params: its parameters, in the dtype that they are saved in.
      base_fingerprint: `checkpoints.fingerprint` of the target's weights; without, it drafts for any of that shape.
      tokens, trained_length: as of `Eagle1Modules`.

    Raises:
      ValueError: weights are int8, not finite or of a dtype that no checkpoint has, or not the configuration's.
      OSError: the disk is full, or the folder cannot be made.
    """
    FILES.save(folder, config, params, base_fingerprint, tokens, trained_length)


def load_eagle1(folder: str | Path, *, dtype: Any = None) -> Eagle1Modules:
    """Loads what `save_eagle1` wrote, onto the default device.

    Args:
      folder: that holds the two files.
      dtype: of the weights in memory; None keeps the files'.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: one is damaged, or not of the same save as the other; a tensor is missing, unexpected, of another
        shape, NaN or infinite. Shapes are compared before a tensor is read.
    """
    return FILES.load(folder, dtype).made(Eagle1Modules)


def eagle1_of(config: Eagle1Config, tensors: Mapping[str, np.ndarray], dtype: Any, **told: Any) -> Eagle1Modules:
    """Returns a drafter of tensors by their dotted names, on the default device; `told` are further attributes."""
    structure, abstract = abstract_eagle1(config, dtype)
    leaves = [(path, v.replace(jax.device_put(tensors[dotted(path)]))) for path, v in nnx.to_flat_state(abstract)]
    return Eagle1Modules(config, NnxModel(structure), nnx.from_flat_state(leaves), **told)


def read_eagle1(folder: str | Path) -> Described:
    """Returns what a folder says of its drafter; weights are not read.

    Raises:
      FileNotFoundError: `eagle1.json` is missing.
      ValueError: it is damaged.
    """
    return FILES.read(folder)
