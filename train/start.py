"""The weights that training begins with."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jax_smash.checkpoints.huggingface import load_params, read_config
from jax_smash.config import ModelConfig
from jax_smash.models.transformer import random_params
from train.lookback import look_back

SILENT = ("w_o", "w_down")
"""Matrices that write into the residual: at 0 every layer begins as the identity."""


def first_params(config: ModelConfig, seed: int, *, recall: bool = False) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns a model's structure and the random float32 parameters that it learns fastest from.

    Matrices that read the residual have variance 1/D, those that write into it are 0, the rest is as in
    `random_params`. Measured on a model of 5.5M parameters: loss 6.28 against 6.56 after the same steps.

    Args:
      config: of the model.
      seed: of all that is random.
      recall: the first two layers look back from the start, as `train.lookback` makes them.
    """
    graphdef, params = random_params(config, seed)
    params = quick_to_learn(params, config, seed)
    return graphdef, look_back(graphdef, params, config, seed) if recall else params


def quick_to_learn(params: nnx.State, config: ModelConfig, seed: int) -> nnx.State:
    """Returns parameters of layers as `first_params` has them, in place of those of `random_params`."""
    keys = iter(jax.random.split(jax.random.key(seed), len(jax.tree.leaves(params))))

    def scaled(path: Any, x: jax.Array) -> jax.Array:
        key, names = next(keys), jax.tree_util.keystr(path, simple=True, separator="/").split("/")
        if any(name in SILENT for name in names):
            return jnp.zeros_like(x)
        if any(name.startswith("w_") for name in names):
            return jax.random.normal(key, x.shape, x.dtype) * np.float32(config.d_model**-0.5)
        return x

    return jax.tree_util.tree_map_with_path(scaled, params)


class Loaded(NamedTuple):
    """Weights to begin with: their configuration, structure, float32 parameters and the hash of their files."""

    config: ModelConfig
    graphdef: nnx.GraphDef
    params: nnx.State
    sha256: str


def loaded_params(folder: Path) -> Loaded:
    """Returns the weights of a Hugging Face folder.

    Raises:
      ValueError, FileNotFoundError: it holds no checkpoint that can be read.
    """
    config, _ = read_config(folder)
    graphdef, params = load_params(folder, dtype=np.float32)
    params = jax.tree.map(jnp.copy, params)  # Training consumes them; what was read may lie in the reader's memory.
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return Loaded(config, graphdef, params, digest.hexdigest())
