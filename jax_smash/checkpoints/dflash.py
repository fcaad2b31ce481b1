"""A DFlash drafter as two files in a folder: `dflash.json` and `dflash.safetensors`.

The first holds `format`, the SHA-256 of the second, the fingerprint of the target's weights where the drafter was
trained for some, the length of the rows that it was trained on where somebody told it, and the fields of
`DFlashConfig`; `taps` are written whatever they are. The second holds a tensor for each parameter by its dotted name:
`w_join [n·D, D]` over the n taps one behind the other; of each layer N `layers.N.attention.w_qkv`,
`layers.N.attention.w_o`, `layers.N.mlp.w_gate_up`, `layers.N.mlp.w_down` and the norms' scales, those of query and key
heads among them; the scales of `context_norm` and `final_norm`; and `mask [D]`, which is missing where a token of the
target stands for a masked one.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Int

from jax_smash.checkpoints.module_files import Described, ModuleFiles
from jax_smash.config import ModelConfig
from jax_smash.models.definition import NnxModel
from jax_smash.models.dflash import abstract_dflash, random_dflash
from jax_smash.models.dflash_config import DFlashConfig
from jax_smash.pytree import size

CONFIG, WEIGHTS = "dflash.json", "dflash.safetensors"

FILES = ModuleFiles(
    description=CONFIG, weights=WEIGHTS, format=1, config=DFlashConfig.from_fields, abstract=abstract_dflash
)


@dataclasses.dataclass(frozen=True)
class DFlashModules:
    """A drafter, ready to be bound.

    Attributes:
      config: its sizes, and those of the target that it fits.
      definition: its structure.
      params: its parameters.
      base_fingerprint: of the target's weights that it was trained for; empty where nobody told.
      tokens: that it can say by the target's head, in rising order; None for all.
      trained_length: tokens of the rows that it was trained on; None where nobody told.
    """

    config: DFlashConfig
    definition: NnxModel
    params: nnx.State
    base_fingerprint: str = ""
    tokens: Int[np.ndarray, "X"] | None = None
    trained_length: int | None = None

    def __repr__(self) -> str:
        """Says how large it is, and prints no weights."""
        return f"DFlashModules({size(self.params)}, blocks of {self.config.block_size})"


def random_drafter(target: ModelConfig, *, seed: int = 0, dtype: Any = np.float32) -> DFlashModules:
    """Makes a drafter of the usual sizes for a target, with random weights."""
    config = DFlashConfig.for_target(target)
    structure, params = random_dflash(config, seed, dtype)
    return DFlashModules(config=config, definition=NnxModel(structure), params=params)


def save_dflash(
    folder: str | Path,
    config: DFlashConfig,
    params: nnx.State,
    *,
    base_fingerprint: str = "",
    tokens: Int[np.ndarray, "X"] | None = None,
    trained_length: int | None = None,
) -> None:
    """Saves a drafter as `dflash.json` and `dflash.safetensors`, whole or not at all; older ones are replaced.

    Args:
      folder: made where it is missing.
      config: of the drafter.
      params: its parameters, in the dtype that they are saved in.
      base_fingerprint: `checkpoints.fingerprint` of the target's weights; without, it drafts for any of that shape.
      tokens, trained_length: as of `DFlashModules`.

    Raises:
      ValueError: weights are int8, not finite or of a dtype that no checkpoint has, or not the configuration's.
      OSError: the disk is full, or the folder cannot be made.
    """
    FILES.save(folder, config, params, base_fingerprint, tokens, trained_length)


def load_dflash(folder: str | Path, *, dtype: Any = None) -> DFlashModules:
    """Loads what `save_dflash` wrote, onto the default device.

    Args:
      folder: that holds the two files.
      dtype: of the weights in memory; None keeps the files'.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: one is damaged, or not of the same save as the other; a tensor is missing, unexpected, of another
        shape, NaN or infinite. Shapes are compared before a tensor is read.
    """
    return FILES.load(folder, dtype).made(DFlashModules)


def read_dflash(folder: str | Path) -> Described:
    """Returns what a folder says of its drafter; weights are not read.

    Raises:
      FileNotFoundError: `dflash.json` is missing.
      ValueError: it is damaged.
    """
    return FILES.read(folder)
