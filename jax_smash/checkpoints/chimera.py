"""A Chimera drafter as two files in a folder: `chimera.json` and `chimera.safetensors`.

The first holds `format`, the SHA-256 of the second, the fingerprint of the target's weights where the drafter was
trained for some, the length of the rows that it was trained on where somebody told it, and the fields of
`ChimeraConfig`. The second holds a tensor for each parameter by its dotted name: `grams.w_in [g·D, D]` and
`grams.w_out [D, D]`, or `grams.block.w [g·D, g·D]`, `grams.block.b [g·D]` and `grams.w_out [g·D, D]`, or those of a
layer behind `grams.layer`; the layer's `layer.attention.w_qkv`, `layer.attention.w_o`, `layer.mlp.w_gate_up` and
`layer.mlp.w_down`; `heads [H, 2·D, D]`, without residuals `[H, D, D]`; and the norms' scales.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Int

from jax_smash.checkpoints.module_files import Described, ModuleFiles
from jax_smash.config import ModelConfig
from jax_smash.models.chimera import abstract_chimera, random_chimera
from jax_smash.models.chimera_config import ChimeraConfig
from jax_smash.models.definition import NnxModel
from jax_smash.pytree import size

CONFIG, WEIGHTS = "chimera.json", "chimera.safetensors"

FILES = ModuleFiles(
    description=CONFIG, weights=WEIGHTS, format=1, config=ChimeraConfig.from_fields, abstract=abstract_chimera
)


@dataclasses.dataclass(frozen=True)
class ChimeraModules:
    """A drafter, ready to be bound.

    Attributes:
      config: its sizes and forms, and those of the target that it fits.
      definition: its structure.
      params: its parameters.
      base_fingerprint: of the target's weights that it was trained for; empty where nobody told.
      tokens: that it can say by the target's head, in rising order; None for all.
      trained_length: tokens of the rows that it was trained on; None where nobody told.
    """

    config: ChimeraConfig
    definition: NnxModel
    params: nnx.State
    base_fingerprint: str = ""
    tokens: Int[np.ndarray, "X"] | None = None
    trained_length: int | None = None

    def __repr__(self) -> str:
        """Says how large it is, and prints no weights."""
        return f"ChimeraModules({size(self.params)}, {self.config.decoding_heads} heads)"


def random_drafter(target: ModelConfig, *, seed: int = 0, dtype: Any = np.float32) -> ChimeraModules:
    """Makes a drafter of the usual sizes for a target, with random weights."""
    config = ChimeraConfig.for_target(target)
    structure, params = random_chimera(config, seed, dtype)
    return ChimeraModules(config=config, definition=NnxModel(structure), params=params)


def save_chimera(
    folder: str | Path,
    config: ChimeraConfig,
    params: nnx.State,
    *,
    base_fingerprint: str = "",
    tokens: Int[np.ndarray, "X"] | None = None,
    trained_length: int | None = None,
) -> None:
    """Saves a drafter as `chimera.json` and `chimera.safetensors`, whole or not at all; older ones are replaced.

    Args:
      folder: made where it is missing.
      config: of the drafter.
      params: its parameters, in the dtype that they are saved in.
      base_fingerprint: `checkpoints.fingerprint` of the target's weights; without, it drafts for any of that shape.
      tokens, trained_length: as of `ChimeraModules`.

    Raises:
      ValueError: weights are int8, not finite or of a dtype that no checkpoint has, or not the configuration's.
      OSError: the disk is full, or the folder cannot be made.
    """
    FILES.save(folder, config, params, base_fingerprint, tokens, trained_length)


def load_chimera(folder: str | Path, *, dtype: Any = None) -> ChimeraModules:
    """Loads what `save_chimera` wrote, onto the default device.

    Args:
      folder: that holds the two files.
      dtype: of the weights in memory; None keeps the files'.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: one is damaged, or not of the same save as the other; a tensor is missing, unexpected, of another
        shape, NaN or infinite. Shapes are compared before a tensor is read.
    """
    return FILES.load(folder, dtype).made(ChimeraModules)


def read_chimera(folder: str | Path) -> Described:
    """Returns what a folder says of its drafter; weights are not read.

    Raises:
      FileNotFoundError: `chimera.json` is missing.
      ValueError: it is damaged.
    """
    return FILES.read(folder)
