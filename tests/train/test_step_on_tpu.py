"""A training step beside a large frozen base, compiled for TPUs that are not at hand."""

import dataclasses
import importlib.util
import math

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding

from jax_smash.cache import Block
from jax_smash.models.depth import hidden_without_cache
from jax_smash.models.families.presets import preset
from jax_smash.models.transformer import abstract_params
from jax_smash.objectives import summed_cross_entropy
from jax_smash.planning import topology
from jax_smash.sharding import make_mesh, param_shardings
from train.run.step import ROWS, first_state, make_step

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="compiling for a TPU needs libtpu"),
    pytest.mark.xdist_group("tpu"),
    pytest.mark.usefixtures("optimised"),
]

BATCH, LENGTH, RANK = 16, 512, 1220
"""The part: two matrices of 4096 × 1220, 10 million weights."""


def placed(shapes, shardings):
    """Shapes where a mesh holds them."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)


def share_bytes(tree):
    """Bytes of a tree on one device."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def objective_of(graphdef):
    """The cross-entropy of the next token, read through a part between the base's layers and its head."""

    def objective(params, tokens):
        base = nnx.merge(graphdef, params["base"])
        valid = jnp.ones(tokens.shape, bool)
        position = jnp.broadcast_to(jnp.arange(LENGTH, dtype=jnp.int32)[None], tokens.shape)
        hidden = hidden_without_cache(base, base.embed(tokens), position, Block.causal(valid), remat=True)
        part = {name: w.astype(hidden.dtype) for name, w in params["part"].items()}
        changed = hidden + (hidden @ part["down"]) @ part["up"]
        weights = jnp.ones(tokens.shape, jnp.float32)
        return summed_cross_entropy(base.unembed, changed, tokens, weights, chunk=2048)

    return objective


@pytest.mark.slow
@pytest.mark.parametrize("layers", [2, pytest.param(32, marks=pytest.mark.slow)])
def test_devices_hold_a_frozen_base_once_in_bfloat16(layers):
    config = preset("llama-3.1-8b")
    config = dataclasses.replace(config, num_layers=layers, layer_kinds=config.layer_kinds[:layers])
    mesh = make_mesh("fsdp=16", devices=topology.devices("v5e:4x4"))
    graphdef, base = abstract_params(config, jnp.bfloat16)
    frozen = {"base": placed(base, param_shardings(base, mesh))}
    part = {
        "down": jax.ShapeDtypeStruct((4096, RANK), jnp.float32),
        "up": jax.ShapeDtypeStruct((RANK, 4096), jnp.float32),
    }
    optimiser = optax.adamw(1e-3)
    state = jax.eval_shape(lambda p: first_state({"part": p}, optimiser), part)
    shardings = param_shardings(state, mesh)
    state = placed(state, shardings)
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32, sharding=NamedSharding(mesh, ROWS))

    step = make_step(objective_of(graphdef), optimiser, mesh, shardings)
    memory = step.lower(state, tokens, frozen).compile().memory_analysis()

    count = sum(leaf.size for leaf in jax.tree.leaves(base))
    assert share_bytes(frozen) == pytest.approx(2 * count / 16, rel=0.01)
    expected = share_bytes(frozen) + share_bytes(state) + share_bytes(tokens)
    assert memory.argument_size_in_bytes == pytest.approx(expected, rel=0.01)
    # What comes out is the state, in its own place: no gradient of the base, and no copy of it.
    assert memory.output_size_in_bytes == pytest.approx(share_bytes(state), rel=0.01)
    assert memory.alias_size_in_bytes == pytest.approx(share_bytes(state), rel=0.01)
    assert memory.argument_size_in_bytes + memory.temp_size_in_bytes < topology.memory_bytes("v5e:4x4")
