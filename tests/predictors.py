"""Predictors beside small random models, and what they make of texts."""

import functools

import jax.numpy as jnp
import numpy as np

from jax_smash.cache import Block
from jax_smash.checkpoints.butler import ButlerModules
from jax_smash.models.attended import attended
from jax_smash.models.definition import NnxModel
from jax_smash.models.predictors import predictor_for, random_predictor
from jax_smash.models.rope import longest
from tests.tiny import tiny_model

BASE = {"num_layers": 3, "layer_kinds": ("full", "sliding", "full"), "spread": 4.0}
"""A model whose layers no producer divides evenly."""

SIZES = {
    "per_head": {"reduced": 8, "reduced_heads": 2, "hidden": 12, "width": 6},
    "grouped": {"every": 2, "hidden": 12, "width": 6},
    "low_rank": {"width": 6},
    "gate": {"page": 4, "share": 2, "width": 6},
}
"""Of each form beside a tiny base."""


def predictor_of(config, kind, **changes):
    """Returns the configuration and the bound module of a small random predictor, spread enough for scores to vary."""
    made = predictor_for(kind, config, **(SIZES[kind] | changes))
    graphdef, params = random_predictor(made, seed=3)
    return made, NnxModel(graphdef).bind(params)


def sizes_of(config, kind, **changes):
    """Returns the configuration of a small predictor."""
    return predictor_for(kind, config, **(SIZES[kind] | changes))


def modules_of(config, seed=3, base_fingerprint="", **more):
    """Returns a random predictor of certain sizes, ready to be bound."""
    graphdef, params = random_predictor(config, seed=seed)
    return ButlerModules(config, NnxModel(graphdef), params, base_fingerprint, **more)


@functools.cache
def read_base(rows=2, width=12):
    """Returns taps, heads, positions and block of rows of random tokens that a base has read."""
    model = base_model()
    bound = model.definition.bind(model.params["target"])
    tokens = jnp.asarray(np.random.default_rng(0).integers(3, 80, (rows, width)), jnp.int32)
    position = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (rows, width))
    block = Block.causal(jnp.ones((rows, width), bool))
    forward = bound.forward(bound.embed(tokens), position, None, block)
    return forward.taps, attended(bound, forward.taps, position, longest(position, block.valid)), position, block


def base_model():
    """Returns the base that predictors are tested beside."""
    return tiny_model(**BASE)


def assert_near(found, expected):
    """Checks equality within a hundred-thousandth of the largest."""
    expected = np.asarray(expected, np.float32)
    scale = max(float(np.abs(expected).max()), 1e-30)
    assert np.abs(np.asarray(found, np.float32) - expected).max() <= 1e-5 * scale


def assert_near_where_seen(found, expected, seen):
    """Checks the same of scores `[…, Q, S]` of which queries see a part."""
    seen = np.broadcast_to(seen, expected.shape)
    assert seen.any()
    assert_near(np.where(seen, found, 0), np.where(seen, expected, 0))


def causal(width):
    """Returns which entry sees which."""
    return np.tril(np.ones((width, width), bool))
