"""Meshes that all of the library is held against one device on, and models divided over them."""

import dataclasses

import jax
from jax.sharding import AxisType, Mesh

from jax_smash.loading import Model
from jax_smash.sharding import make_mesh, place
from tests.tiny import tiny_model

MESHES = ("data=8", "fsdp=4,tp=2", "data=2,tp=4")
"""Rows alone; weights, rows and heads; rows and heads."""


def divisible_model(**changes) -> Model:
    """Returns the two-layer model, with heads and a vocabulary that every one of the meshes divides."""
    return tiny_model(**{"num_heads": 8, "num_kv_heads": 4, "vocab_size": 264} | changes)


def divided(model: Model, mesh: str) -> Model:
    """Returns a model with its parameters on a mesh."""
    on = make_mesh(mesh)
    params = {role: place(weights, on) for role, weights in model.params.items()}
    return dataclasses.replace(model, params=params)


def sharing_slots(devices: int) -> Mesh:
    """Returns a mesh whose devices have shares of a cache's slots."""
    return jax.make_mesh((devices,), ("seq",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
