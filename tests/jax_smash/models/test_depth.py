"""A transformer's layers as training runs them, where layers differ in more than their attention's kind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_smash.cache import Block
from jax_smash.config import RopeConfig
from jax_smash.models.depth import hidden_without_cache, tapped_without_cache
from jax_smash.models.transformer import abstract_params
from tests.smashers import filled
from tests.tiny import tiny_config

LONGROPE = RopeConfig(
    scaling="longrope", original_positions=5, short_factors=(1.0,) * 4, long_factors=(1.0, 2.0, 4.0, 8.0)
)
CONFIGS = {
    "every other layer without rotation": tiny_config(
        num_layers=4, layer_kinds=("full",) * 4, window=0, unrotated_layers=(1, 3)
    ),
    "post-norms and wavelengths by length": tiny_config(
        layer_kinds=("full", "full"), window=0, pre_norms=False, post_norms=True, joint_qk_norm=True, rope=LONGROPE
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_loop_over_layers_is_the_forward(name):
    model = nnx.merge(*filled(abstract_params(CONFIGS[name])))
    inputs = jax.random.normal(jax.random.key(0), (2, 7, 32))
    position = jnp.broadcast_to(jnp.arange(7, dtype=jnp.int32)[None], (2, 7))
    block = Block.causal(jnp.asarray([[True] * 7, [True] * 4 + [False] * 3]))
    with jax.default_matmul_precision("highest"):
        plain = jax.jit(lambda x: model.forward(x, position, None, block))(inputs)
        looped = jax.jit(lambda x: hidden_without_cache(model, x, position, block, remat=True, scan=True))(inputs)
        _, taps = jax.jit(lambda x: tapped_without_cache(model, x, position, block, scan=True))(inputs)
    np.testing.assert_allclose(looped[0], plain.hidden[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(looped[1, :4], plain.hidden[1, :4], rtol=1e-4, atol=1e-5)
    for one, other in zip(taps, plain.taps, strict=True):
        np.testing.assert_allclose(one[0], other[0], rtol=1e-4, atol=1e-5)


def test_a_layer_without_rotation_does_not_know_where_it_is():
    base = tiny_config(layer_kinds=("full", "full"), window=0)
    inputs = jax.random.normal(jax.random.key(0), (1, 5, 32))
    block = Block.causal(jnp.ones((1, 5), bool))
    near = jnp.arange(5, dtype=jnp.int32)[None]
    split = abstract_params(base)[1]
    for unrotated, knows in (((0, 1), False), ((0,), True)):
        config = tiny_config(layer_kinds=("full", "full"), window=0, unrotated_layers=unrotated)
        model = nnx.merge(abstract_params(config)[0], filled((None, split))[1])
        forward = jax.jit(lambda position, model=model: model.forward(inputs, position, None, block).hidden)
        here, there = forward(near), forward(near * 7)
        assert bool(np.abs(here - there).max() > 1e-4) is knows
