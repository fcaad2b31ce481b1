import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.cache import Block
from jax_smash.models.attended import attended
from jax_smash.models.rope import longest
from tests.predictors import base_model
from tests.tiny import tiny_model


@pytest.mark.parametrize(
    "changes", [{}, {"qk_norm": True}, {"joint_qk_norm": True, "pre_norms": False, "post_norms": True}]
)
def test_keys_are_those_that_the_forward_hands_to_its_cache(changes):
    model = tiny_model(qkv_bias=True, **changes)
    bound = model.definition.bind(model.params["target"])
    tokens = jnp.arange(3, 25, dtype=jnp.int32).reshape(2, 11)
    position = jnp.broadcast_to(jnp.arange(11, dtype=jnp.int32), (2, 11))
    block = Block.causal(jnp.ones((2, 11), bool))
    forward = bound.forward(bound.embed(tokens), position, None, block)
    found = attended(bound, forward.taps, position, longest(position, block.valid))
    for i, (keys, _) in enumerate(forward.block_kv):
        np.testing.assert_allclose(found.keys[i], keys, rtol=1e-5, atol=1e-5)
        assert float(jnp.abs(found.plain_keys[i] - keys).max()) > 0.01
    assert found.queries.shape == (2, 2, 11, 4, 8)


def test_a_layer_without_a_rotary_embedding_has_plain_heads_alone():
    model = tiny_model(unrotated_layers=(1,))
    bound = model.definition.bind(model.params["target"])
    position = jnp.arange(5, dtype=jnp.int32)[None]
    block = Block.causal(jnp.ones((1, 5), bool))
    forward = bound.forward(bound.embed(position + 3), position, None, block)
    found = attended(bound, forward.taps, position)
    np.testing.assert_array_equal(found.keys[1], found.plain_keys[1])
    np.testing.assert_array_equal(found.queries[1], found.plain_queries[1])
    assert float(jnp.abs(found.keys[0] - found.plain_keys[0]).max()) > 0.01


def test_attention_by_these_queries_and_keys_is_that_of_the_model():
    model = base_model()
    bound = model.definition.bind(model.params["target"])
    position = jnp.arange(9, dtype=jnp.int32)[None]
    block = Block.causal(jnp.ones((1, 9), bool))
    forward = bound.forward(bound.embed(position + 3), position, None, block)
    found, config = attended(bound, forward.taps, position), dataclasses.asdict(model.config)
    layer = bound.layers[0]
    expected = layer.attention(layer.attention_norm(forward.taps[0]), position, _angles(model, position), None, block)[
        0
    ]
    q, k, value = found.queries[0, 0], found.keys[0, 0], forward.block_kv[0][1][0]
    out = []
    for n in range(config["num_heads"]):
        kv = n // (config["num_heads"] // config["num_kv_heads"])
        scores = q[:, n] @ k[:, kv].T * jnp.float32(config["query_scale"])
        weights = np.exp(np.where(np.tril(np.ones((9, 9), bool)), scores, -np.inf))
        out.append(weights @ value[:, kv] / weights.sum(-1, keepdims=True))
    flat = np.concatenate(out, axis=-1)
    w_o = layer.attention.w_o[...].reshape(-1, config["d_model"])
    np.testing.assert_allclose(flat @ w_o, expected[0], rtol=1e-4, atol=1e-4 * float(jnp.abs(expected).max()))


def _angles(model, position):
    from jax_smash.models.rope import rotations

    return rotations(model.config, position, None)[0]
