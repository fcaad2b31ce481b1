"""The target that a drafter is trained beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jax_smash.checkpoints.huggingface import load_params
from jax_smash.loading import find
from jax_smash.models.families import ParamPath
from train.run.start import Stored


def target_folder(base: str | Path) -> Path:
    """Returns the folder of a target's weights and tokenizer.

    Args:
      base: a shipped model, a Hugging Face folder or a hub id.

    Raises:
      FileNotFoundError: there is no such model, or its folder has no tokenizer.
      ValueError: its weights are a GGUF file.
    """
    folder = find(str(base))
    if not folder.is_dir():
        raise ValueError(f"{base} must be a Hugging Face folder; got {folder}: `jax-smash convert` makes one of it")
    if not (folder / "tokenizer.json").is_file():
        raise FileNotFoundError(f"{folder} must hold tokenizer.json; there is none")
    return folder


def head_rows(base: Stored, tokens: Int[np.ndarray, "X"]) -> Float[np.ndarray, "X D"]:
    """Returns the target's rows of some tokens, in float32: what its logits of them are made by."""
    name, found = ("embedding" if base.config.tied_head else "head"), []

    def place(where: ParamPath, array: Any) -> np.ndarray:
        if where == (name,):
            found.append(np.asarray(array)[tokens] / np.float32(base.config.logits_divisor))
        return np.zeros(())

    load_params(base.folder, base.config, dtype=jnp.float32, place=place)
    return found[0]


def final_scale(base: Stored) -> Float[np.ndarray, "D"]:
    """Returns what the target's final norm multiplies with, in float32."""
    found = []

    def place(where: ParamPath, array: Any) -> np.ndarray:
        if where == ("final_norm", "scale"):
            found.append(np.asarray(array) + np.float32(base.config.norm_offset))
        return np.zeros(())

    load_params(base.folder, base.config, dtype=jnp.float32, place=place)
    return found[0]
