import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.smash.entropy import divergence, entropy_bound, next_token_entropy

HEAD = np.random.default_rng(9).normal(size=(6, 50)).astype(np.float32)


def unembed(hidden):
    return hidden @ jnp.asarray(HEAD) * 2.0


def probabilities(hidden):
    logits = np.asarray(unembed(hidden), np.float64)
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def hidden(seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(3, 7, 6)).astype(np.float32))


@pytest.mark.parametrize("chunk", [1, 6, 100])
def test_entropy_and_divergence_are_their_formulas_in_any_pieces(chunk):
    p, q = probabilities(hidden(0)), probabilities(hidden(1))
    entropy = jax.jit(lambda h: next_token_entropy(unembed, h, chunk=chunk))(hidden(0))
    np.testing.assert_allclose(entropy, -(p * np.log(p)).sum(-1), rtol=1e-4, atol=1e-5)
    lost = jax.jit(lambda *h: divergence(unembed, *h, chunk=chunk))(hidden(0), hidden(1))
    np.testing.assert_allclose(lost, (p * np.log(p / q)).sum(-1), rtol=1e-4, atol=1e-5)


def test_a_certain_and_an_even_prediction():
    logits = jnp.array([[[0.0] * 50, [1e9] + [0.0] * 49]])
    np.testing.assert_allclose(next_token_entropy(lambda x: x, logits), [[np.log(50), 0.0]], rtol=1e-5)


@pytest.mark.parametrize("confidence", [0.05, 0.7, 0.95, 1.0])
def test_no_prediction_of_that_confidence_has_more_entropy_than_the_bound(confidence):
    rng = np.random.default_rng(0)
    rest = rng.dirichlet(np.ones(49), size=100) * (1 - confidence)
    p = np.concatenate([np.full((100, 1), confidence), rest], axis=1)
    entropy = -np.where(p > 0, p * np.log(np.maximum(p, 1e-300)), 0).sum(-1)
    assert (entropy <= entropy_bound(confidence, 50) + 1e-12).all()
    even = [confidence] + [(1 - confidence) / 49] * 49
    assert entropy_bound(confidence, 50) == pytest.approx(-sum(x * np.log(x) for x in even if x))
