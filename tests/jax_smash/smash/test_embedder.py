import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_smash.quantise import quantise_params
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.embedder import CompositionalEmbedder, MeanPooling
from jax_smash.smash.smasher import abstract_smasher
from tests.smashers import BASES, filled, smasher_of

D = 32


def vectors(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(*shape, D)).astype(np.float32))


@functools.cache
def fusing(kind):
    """Returns the compiled ways to fuse groups: all of them, and those of several tokens alone."""
    smasher = smasher_of(embedder=kind)
    return jax.jit(lambda *x: smasher.fuse(*x)), jax.jit(lambda *x: smasher.fuse_some(*x))


@functools.cache
def embedding(kind="attention"):
    embedder = smasher_of(embedder=kind).embedder
    return jax.jit(lambda vectors, count: embedder(vectors, count))


def test_the_embedder_is_its_formula():
    embedder = smasher_of(embedder_heads=4).embedder
    x = np.asarray(vectors(3, 4), np.float64)
    count = [2, 3, 4]
    w = {name: np.asarray(getattr(embedder, name)[...], np.float64) for name in ("w_q", "w_kv", "w_kv_place", "w_o")}
    b = {name: np.asarray(getattr(embedder, name)[...], np.float64) for name in ("b_q", "b_kv", "b_o", "place")}
    expected = []
    for row, n in zip(x, count, strict=True):
        mean = row[:n].mean(0)
        query = np.einsum("D,DNH->NH", mean, w["w_q"]) + b["b_q"]
        read = np.concatenate([row[:n], b["place"][:n]], axis=1)
        w_kv = np.concatenate([w["w_kv"], w["w_kv_place"]])
        key, value = np.moveaxis(np.einsum("JI,ICNH->JCNH", read, w_kv) + b["b_kv"], 1, 0)
        scores = np.einsum("NH,JNH->NJ", query, key) / np.sqrt(8)
        weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        mix = np.einsum("NJ,JNH->NH", weights, value)
        expected.append(mean + np.einsum("NH,NHD->D", mix, w["w_o"]) + b["b_o"])
    actual = jax.jit(lambda *x: embedder(*x))(jnp.asarray(x, jnp.float32), jnp.array(count, jnp.int32))
    np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", ["attention", "mean"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_token_alone_passes_unchanged(kind, dtype):
    embedder = embedding(kind)
    x = vectors(5, 4).astype(dtype)
    count = jnp.array([1, 2, 1, 4, 1], jnp.int32)
    fused = embedder(x, count)
    assert fused.dtype == dtype
    np.testing.assert_array_equal(fused[::2], x[::2, 0])
    assert not np.array_equal(fused[1], x[1, 0])


@pytest.mark.parametrize("kind", ["attention", "mean"])
@pytest.mark.parametrize("counts", [(1, 3, 2, 1), (1, 1, 1, 1), (0, 1, 0, 4), (0, 0, 0, 0)])
def test_what_is_skipped_where_no_group_has_several_tokens_changes_nothing(kind, counts):
    (every, some), x, count = fusing(kind), vectors(4, 4), jnp.array(counts, jnp.int32)
    np.testing.assert_allclose(some(x, count), every(x, count), rtol=1e-6, atol=1e-7)


def test_mean_pooling_is_the_mean():
    fused = jax.jit(MeanPooling())(vectors(2, 3, 4), jnp.array([[1, 2, 3], [4, 3, 0]], jnp.int32))
    x = np.asarray(vectors(2, 3, 4))
    np.testing.assert_allclose(fused[0, 2], x[0, 2, :3].mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fused[1, 0], x[1, 0].mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(fused[1, 2], np.zeros(D))


@pytest.mark.parametrize("kind", ["attention", "mean"])
def test_what_stands_behind_a_group_changes_nothing(kind):
    embedder = embedding(kind)
    count = jnp.array([0, 1, 2, 3], jnp.int32)
    x = vectors(4, 4)
    outside = jnp.arange(4, dtype=jnp.int32)[None] >= count[:, None]
    spoiled = jnp.where(outside[:, :, None], jnp.nan, x)
    np.testing.assert_array_equal(embedder(spoiled, count), embedder(x, count))
    assert np.isfinite(embedder(spoiled, count)).all()


def test_the_order_within_a_group_counts_for_attention_alone():
    x, count = vectors(1, 3), jnp.array([3], jnp.int32)
    attention, mean = embedding(), embedding("mean")
    assert np.abs(attention(x, count) - attention(x[:, ::-1], count)).max() > 1e-3
    np.testing.assert_allclose(mean(x, count), mean(x[:, ::-1], count), rtol=1e-5, atol=1e-6)


def test_groups_do_not_see_each_other():
    embedder = embedding()
    x, count = vectors(6, 4), jnp.array([1, 2, 3, 4, 2, 3], jnp.int32)
    together = embedder(x, count)
    for i in range(6):
        np.testing.assert_allclose(embedder(x[i : i + 1], count[i : i + 1])[0], together[i], rtol=1e-5, atol=1e-5)


def test_the_gradient_is_finite_and_reaches_every_weight():
    base = BASES["qwen2"]
    graphdef, params = filled(abstract_smasher(base, SmashConfig.for_base(base, micro_layers=1)))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4, base.d_model)).astype(np.float32))

    def loss(params):
        return jnp.square(nnx.merge(graphdef, params).fuse(x, jnp.array([0, 1, 2, 3, 4], jnp.int32))).sum()

    gradients = nnx.to_flat_state(jax.jit(jax.grad(loss))(params))
    for path, variable in gradients:
        value = np.asarray(variable.get_value())
        assert np.isfinite(value).all(), path
        if path[0] == "embedder":
            # A key's bias moves all scores of a query alike, so its gradient is rounding.
            assert np.abs(value).max() > 0, path


def test_int8_weights_serve_too():
    base = BASES["llama"]
    graphdef, params = filled(abstract_smasher(base, SmashConfig.for_base(base, micro_layers=1)))
    count, x = jnp.array([1, 2, 3, 4], jnp.int32), vectors(4, 4)
    fuse = jax.jit(lambda p: nnx.merge(graphdef, p).fuse(x, count))
    plain, rounded = fuse(params), fuse(jax.jit(quantise_params)(params))
    np.testing.assert_array_equal(rounded[0], x[0, 0])
    np.testing.assert_allclose(rounded, plain, atol=0.02)


def test_heads_are_thirty_two_wide_where_the_width_allows():
    config = SmashConfig.for_base(BASES["qwen2"])
    assert BASES["qwen2"].d_model // config.embedder_heads == 16
    embedder = nnx.eval_shape(
        lambda: CompositionalEmbedder(BASES["qwen2"], config, rngs=nnx.Rngs(0), dtype=jnp.float32)
    )
    assert embedder.w_q.get_value().shape == (48, 3, 16)
    assert embedder.place.get_value().shape == (4, 24)
