import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.objectives import cross_entropy, most_probable, summed_cross_entropy, summed_divergence

B, T, D, V = 2, 5, 8, 50


@pytest.fixture
def entries():
    rng = np.random.default_rng(0)
    head, hidden = (jnp.asarray(rng.normal(size=shape).astype(np.float32)) for shape in ((V, D), (B, T, D)))
    targets = jnp.asarray(rng.integers(0, V, (B, T), np.int32))
    weights = jnp.array([[1, 1, 0, 1, 1], [0, 1, 1, 1, 0]], jnp.float32)
    return head, hidden, targets, weights


def by_hand(head, hidden, targets, weights):
    logits = np.asarray(hidden, np.float64) @ np.asarray(head, np.float64).T
    likelihood = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return -(np.log(np.take_along_axis(likelihood, np.asarray(targets)[..., None], -1))[..., 0] * weights).sum()


@functools.partial(jax.jit, static_argnums=4)
def loss(head, hidden, targets, weights, chunk):
    return summed_cross_entropy(lambda x: x @ head.T, hidden, targets, weights, chunk=chunk)


@pytest.mark.parametrize("chunk", [1, 3, 5, 10, 64])
def test_any_chunk_gives_the_sum_in_nats(entries, chunk):
    total, count = loss(*entries, chunk)
    np.testing.assert_allclose(total, by_hand(*entries), rtol=1e-5)
    assert count == 7


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_the_divergence_is_summed_in_nats_by_the_weights(entries, chunk):
    head, of, _, weights = entries
    student_head, approximation = head * 0.9, of[..., ::-1]
    total = summed_divergence(
        lambda x: x @ head.T, of, lambda x: x @ student_head.T, approximation, weights, chunk=chunk
    )
    logits = (
        np.asarray(h, np.float64) @ np.asarray(m, np.float64).T for h, m in ((of, head), (approximation, student_head))
    )
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in logits)
    np.testing.assert_allclose(total, ((p * np.log(p / q)).sum(-1) * weights).sum(), rtol=1e-5)


@pytest.mark.parametrize("chunk", [1, 3, 4, 64])
def test_any_chunk_gives_the_most_probable_tokens(entries, chunk):
    head, hidden, *_ = entries
    found = most_probable(lambda x: x @ head.T, hidden, chunk=chunk)
    np.testing.assert_array_equal(found, np.argmax(np.asarray(hidden) @ np.asarray(head).T, axis=-1))


def test_the_mean_is_the_sum_over_the_weights(entries):
    head, *rest = entries
    mean = cross_entropy(lambda x: x @ head.T, *rest, chunk=3)
    np.testing.assert_allclose(mean, by_hand(*entries) / 7, rtol=1e-5)


def test_the_gradient_does_not_depend_on_the_chunk(entries):
    def gradient(chunk):
        return jax.grad(lambda head, hidden: loss(head, hidden, *entries[2:], chunk)[0], argnums=(0, 1))(*entries[:2])

    for chunked, whole in zip(gradient(3), gradient(B * T), strict=True):
        np.testing.assert_allclose(chunked, whole, atol=1e-5)


def test_a_target_without_weight_counts_for_nothing(entries):
    head, hidden, targets, weights = entries
    gradient = jax.grad(lambda hidden: loss(head, hidden, targets, weights, 4)[0])(hidden)
    moved = np.abs(np.asarray(gradient)).sum(-1) > 0
    np.testing.assert_array_equal(moved, np.asarray(weights) > 0)


@pytest.mark.parametrize("chunk", [3, 64])
def test_a_target_of_negative_weight_costs_by_how_likely_it_is(entries, chunk):
    head, hidden, targets, _ = entries
    signs = jnp.array([[1, -2, 0, 1, -1], [0, 1, -1, 1, 0]], jnp.float32)
    total, count = loss(head, hidden, targets, signs, chunk)
    logits = np.asarray(hidden, np.float64) @ np.asarray(head, np.float64).T
    likely = np.take_along_axis(np.exp(logits), np.asarray(targets)[..., None], -1)[..., 0] / np.exp(logits).sum(-1)
    wanted = by_hand(head, hidden, targets, np.maximum(signs, 0)) - (np.maximum(-signs, 0) * np.log1p(-likely)).sum()
    np.testing.assert_allclose(total, wanted, rtol=1e-5)
    assert count == 8


def test_a_certain_target_of_negative_weight_has_a_finite_cost_and_gradient():
    head, hidden = 100 * jnp.eye(V, D), 100 * jnp.eye(1, D)[None]
    value, gradient = jax.value_and_grad(lambda x: loss(head, x, jnp.zeros((1, 1), int), -jnp.ones((1, 1)), 4)[0])(
        hidden
    )
    assert 5 < value < 20
    assert np.isfinite(gradient).all()


def test_no_target_at_all_gives_zero_and_a_finite_gradient(entries):
    head, hidden, targets, weights = entries
    nothing = functools.partial(cross_entropy, lambda x: x @ head.T)
    value, gradient = jax.value_and_grad(nothing)(hidden, targets, jnp.zeros_like(weights))
    assert value == 0
    np.testing.assert_array_equal(gradient, np.zeros_like(hidden))


def test_no_logits_of_all_entries_are_in_memory_in_the_backward_pass():
    entries, vocabulary, chunk = 4096, 2048, 64
    head = jax.ShapeDtypeStruct((vocabulary, D), jnp.float32)
    hidden = jax.ShapeDtypeStruct((1, entries, D), jnp.float32)
    targets = jax.ShapeDtypeStruct((1, entries), jnp.int32)
    weights = jax.ShapeDtypeStruct((1, entries), jnp.float32)

    def temporaries(chunk):
        gradient = jax.jit(jax.grad(lambda *a: loss(*a, chunk)[0], argnums=(0, 1)))
        return gradient.lower(head, hidden, targets, weights).compile().memory_analysis().temp_size_in_bytes

    all_logits = entries * vocabulary * 4
    assert temporaries(chunk) < all_logits / 8
    assert temporaries(entries) >= all_logits


def test_half_precision_logits_are_summed_in_float32(entries):
    head, hidden, targets, weights = entries
    half = hidden.astype(jnp.bfloat16)
    total, _ = summed_cross_entropy(lambda x: x @ head.astype(jnp.bfloat16).T, half, targets, weights, chunk=4)
    assert total.dtype == jnp.float32
    np.testing.assert_allclose(total, by_hand(*entries), rtol=0.05)


def test_a_chunk_below_one_is_refused(entries):
    with pytest.raises(ValueError, match="chunk must be at least 1; got 0"):
        loss(*entries, 0)
