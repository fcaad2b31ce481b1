"""Parameters as a checkpoint stores them."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Sharding

from jax_smash.checkpoints import huggingface, orbax
from jax_smash.checkpoints.adapter import Adapter, with_base
from jax_smash.checkpoints.configuration import checkpoint_config
from jax_smash.checkpoints.fingerprint import Fingerprint
from jax_smash.config import ModelConfig
from jax_smash.loading.names import find
from jax_smash.models.families import ParamPath


def read_params(
    source: Path,
    config: ModelConfig,
    dtype: Any,
    placing: huggingface.Place,
    adapter: Adapter | None = None,
    shardings: Mapping[ParamPath, Sharding] | None = None,
) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns structure and parameters of a checkpoint in any layout, an adapter merged into them."""
    if orbax.is_checkpoint(source):
        return orbax.load(source, dtype=dtype, place=placing, shardings=shardings)[1:]
    return huggingface.load_params(source, config, dtype=dtype, place=placing, shardings=shardings, adapter=adapter)


def stored_base(name: str | Path) -> tuple[ModelConfig, Callable[[], str]]:
    """Returns a model's configuration, and what reads its weights for their fingerprint without a device.

    Args:
      name: as of `load`; of an adapter, its base with the adapter merged is meant.

    Raises:
      FileNotFoundError: there is no such model.
      ValueError: the checkpoint is damaged or of an unknown architecture.
    """
    path, adapter = with_base(find(name), find)
    config = checkpoint_config(path)
    return config, functools.partial(stored_fingerprint, path, config, adapter)


def stored_fingerprint(source: Path, config: ModelConfig, adapter: Adapter | None = None) -> str:
    """Returns the fingerprint of a checkpoint's weights as they are stored: reads them, and keeps none."""
    seen = Fingerprint(config)
    read_params(source, config, jnp.float32, seen.place(lambda where, array: np.zeros(())), adapter)
    return seen.hexdigest()


def stored_vectors(path: Path, of: Literal["embedding", "head"] = "embedding") -> np.ndarray:
    """Returns a checkpoint's vectors of tokens `[V, D]`, in float32; of its other weights none is kept.

    Args:
      path: of the checkpoint.
      of: the vectors that stand for tokens at the input, or the rows of the head, which may be the same.
    """
    config, found = checkpoint_config(path), []
    name = "embedding" if config.tied_head else of

    def place(where: Any, array: Any) -> np.ndarray:
        if tuple(where) == (name,):
            found.append(np.array(array))
        return np.zeros(())

    read_params(path, config, jnp.float32, place)
    return found[0]
