"""Where the parameters of a model lie on a mesh of devices."""

import dataclasses
import logging
import math
from pathlib import Path
from typing import Any

from flax import nnx
from jax.sharding import AbstractMesh, Mesh, Sharding

from jax_smash.checkpoints import huggingface, orbax
from jax_smash.config import ModelConfig
from jax_smash.models.families import ParamPath
from jax_smash.models.transformer import abstract_params
from jax_smash.quantise import quantising_place
from jax_smash.sharding import param_shardings, to_devices

LOG = logging.getLogger("jax_smash")


def divisible(config: ModelConfig, source: Path | None, mesh: Mesh | AbstractMesh | None) -> ModelConfig:
    """Returns a configuration whose KV heads a mesh divides, each held as often as that takes; tells of it.

    Where the heads of queries cannot be divided either, or weights are stored as they are held, every device holds all.
    """
    devices = 1 if mesh is None else mesh.shape["tp"]
    if config.held_kv_heads % devices == 0:
        return config
    copies = devices // math.gcd(devices, config.num_kv_heads)
    if config.num_heads % (config.num_kv_heads * copies) == 0 and not (source and orbax.is_checkpoint(source)):
        LOG.warning(
            "jax-smash: for a mesh of tp=%d each of %d KV heads is held %d times, side by side, and so is its cache",
            devices,
            config.num_kv_heads,
            copies,
        )
        return dataclasses.replace(config, kv_copies=copies)
    LOG.warning(
        "jax-smash: a mesh of tp=%d does not divide %d KV heads: each device holds the attention weights and the "
        "caches of all of them",
        devices,
        config.num_kv_heads,
    )
    return config


def shardings_of(config: ModelConfig, mesh: Mesh) -> dict[ParamPath, Sharding]:
    """Returns where each parameter of a model lies on a mesh.

    Raises:
      ValueError: a parameter does not fit the mesh.
    """
    shardings = param_shardings(abstract_params(config)[1], mesh)
    return {where: v.get_value() for where, v in nnx.to_flat_state(shardings)}


def placing_of(config: ModelConfig, weights: str, mesh: Mesh | None) -> huggingface.Place | None:
    """Returns a function that puts a parameter on its devices, as it is or as int8; None where nothing need be done."""
    if mesh is None and weights == "plain":
        return None
    placing = None
    if mesh is not None:
        lie = shardings_of(config, mesh)

        def placing(where: ParamPath, array: Any) -> Any:
            return to_devices(array, lie[where])

    return quantising_place(abstract_params(config)[1], placing) if weights == "int8" else placing
