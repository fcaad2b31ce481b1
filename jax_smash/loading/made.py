"""Models that are made in memory: with random weights, or with those of another in int8."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from jax_smash.checkpoints.configuration import shape_config
from jax_smash.loading.divided import divisible
from jax_smash.loading.model import Model
from jax_smash.loading.modules import weights_fingerprint
from jax_smash.models.definition import NnxModel
from jax_smash.models.transformer import abstract_params, random_params
from jax_smash.platform import prepare_devices
from jax_smash.quantise import quantise_params
from jax_smash.sharding import make_mesh, mesh_of, on_mesh, param_shardings, place


def random_model(shape: str, *, dtype: Any = jnp.bfloat16, seed: int = 0, mesh: str | Mesh | None = None) -> Model:
    """Makes a model of a real shape with random weights, to measure speed without a checkpoint.

    Args:
      shape: a preset's name, or a directory with a `config.json`.
      dtype: the dtype of the weights.
      seed: the seed of the weights.
      mesh: the devices to divide them over, as in `load`. The weights are the same on any mesh.

    Raises:
      ValueError: there is no such shape; the mesh does not fit the devices or the shape.
    """
    prepare_devices()
    config = shape_config(shape)
    mesh = make_mesh(mesh, kv_heads=config.num_kv_heads) if isinstance(mesh, str) else mesh
    config = divisible(config, None, mesh)
    if mesh is not None:
        param_shardings(abstract_params(config)[1], mesh)  # Raises before anything is made.
    with on_mesh(mesh):
        graphdef, params = random_params(config, seed=seed, dtype=dtype)
    params = params if mesh is None else place(params, mesh)
    return Model(name=shape, definition=NnxModel(graphdef), params={"target": params}, config=config)


def quantised(model: Model) -> Model:
    """Returns a copy of a model with int8 matrices, those of its modules included. The given model is unchanged."""
    mesh = mesh_of(model.params)
    params = {role: quantise_params(weights) for role, weights in model.params.items()}
    if mesh is not None:
        params = {role: place(weights, mesh) for role, weights in params.items()}
    modules = model.modules and dataclasses.replace(model.modules, params=params["smasher"])
    return dataclasses.replace(model, params=params, modules=modules, fingerprint=weights_fingerprint(model))
