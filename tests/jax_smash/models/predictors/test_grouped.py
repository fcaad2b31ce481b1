import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.models.predictors import importance, int4_keys, int8_keys
from tests.predictors import assert_near, assert_near_where_seen, base_model, causal, predictor_of, read_base


@pytest.mark.parametrize("int8", [False, True])
def test_scores_of_single_steps_are_those_of_whole_rows(int8):
    model = base_model()
    config, predictor = predictor_of(model.config, "grouped", int8=int8)
    taps, heads, position, block = read_base()
    whole = predictor.read(taps, heads, position, block)
    for layer in range(config.num_layers):
        start = layer - layer % config.every
        kept, asked = [], []
        for t in range(position.shape[1]):
            kept.append(predictor.keys_of(layer, heads.keys[layer][:, t : t + 1]))
            asked.append(predictor.queries_at(start, taps[start][:, t : t + 1])[:, :, layer - start])
        keys = jax.tree.map(lambda *pieces: jnp.concatenate(pieces, axis=1), *kept)
        found = importance(jnp.concatenate(asked, axis=1), keys).max(2)
        expected = int8_keys(whole.keys[layer]) if int8 else whole.keys[layer]
        assert_near_where_seen(found, importance(whole.queries[layer], expected).max(2), causal(position.shape[1]))


def test_a_key_meets_the_queries_of_its_group():
    queries = jnp.asarray([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0], [-1.0, -1.0]])[None, None]
    keys = jnp.asarray([[[1.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [0.0, -1.0]]])[None]
    found = importance(queries, keys)[0, :, :, 0] * 2**0.5
    np.testing.assert_allclose(found, [[[1, 0], [0, 2]], [[6, -3], [-2, 1]]], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("rounded", "dtypes", "most"), [(int8_keys, ("int8", "float32"), 127), (int4_keys, ("int4", "bfloat16"), 7)]
)
def test_rounded_keys_lie_within_half_a_level_of_their_numbers(rounded, dtypes, most):
    keys = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 3, 6)), jnp.float32).at[0, 0, 0].set(0.0)
    found = rounded(keys)
    assert (found.values.dtype, found.scale.dtype) == tuple(map(jnp.dtype, dtypes))
    values, scale = (x.astype(jnp.float32) for x in (found.values, found.scale[..., None]))
    back = values * scale
    assert bool((jnp.abs(back - keys) <= 0.5001 * scale).all())
    assert bool((jnp.abs(values).max(-1)[1:] == most).all())
    queries = jnp.ones((2, 1, 6, 6))
    assert_near(importance(queries, found), importance(queries, back))


@pytest.mark.parametrize("rounded", [None, int8_keys, int4_keys])
def test_scores_in_bfloat16_are_those_of_float32_to_its_precision(rounded):
    keys, queries = (jax.random.normal(jax.random.key(i), (2, 5, n, 6), jnp.bfloat16) for i, n in enumerate((3, 6)))
    keys = rounded(keys) if rounded else keys
    expected, found = importance(queries, keys), importance(queries, keys, jnp.bfloat16)
    assert (expected.dtype, found.dtype) == (jnp.float32, jnp.bfloat16)
    most = float(jnp.abs(expected).max())
    off = float(jnp.abs(expected - found.astype(jnp.float32)).max())
    assert 0 < off < 0.02 * most


def test_producers_stand_every_few_layers_and_are_refused_elsewhere():
    config, predictor = predictor_of(base_model().config, "grouped", every=2)
    assert [*config.starts] == [0, 2]
    x = jnp.ones((1, 3, config.d_model))
    assert [predictor.queries_at(i, x).shape[2] for i in config.starts] == [2, 1]
    with pytest.raises(ValueError, match=r"layer must be one of \[0, 2\], where producers are; got 1"):
        predictor.queries_at(1, x)
