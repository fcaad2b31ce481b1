"""The target that a drafter is trained beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
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


def first_layer(base: Stored, like: nnx.State) -> nnx.State:
    """Returns the weights of a target's first layer, in float32.

    Args:
      base: the target.
      like: weights of a layer that are to have its sizes.

    Raises:
      ValueError: the target's layers have other weights than these.
    """
    found: dict[ParamPath, np.ndarray] = {}

    def place(where: ParamPath, array: Any) -> np.ndarray:
        if where[:2] == ("layers", 0):
            found[where[2:]] = np.array(array, np.float32)
        return np.zeros(())

    load_params(base.folder, base.config, dtype=jnp.float32, place=place)
    wanted = {path: tuple(variable.shape) for path, variable in nnx.to_flat_state(like)}
    if wanted != (has := {path: array.shape for path, array in found.items()}):
        other = min(map(str, {*wanted.items()} ^ {*has.items()}))
        raise ValueError(f"the first layer of {base.folder} is of another form than a drafter's: {other} differs")
    return nnx.from_flat_state([(p, v.replace(jnp.array(found[p], copy=True))) for p, v in nnx.to_flat_state(like)])
