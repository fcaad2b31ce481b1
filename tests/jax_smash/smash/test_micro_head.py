import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from qwix import QArray

from jax_smash.models.transformer import Transformer
from jax_smash.quantise import quantise_params
from jax_smash.smash.micro_head import ROLE, int8_head, micro_logits, reduced_head, sure
from tests.smashers import base_of

HIDDEN = jnp.asarray(np.random.default_rng(1).normal(0, 1, (3, 32)), jnp.float32)
COUNTS = np.zeros(259, np.int64)
COUNTS[[200, 7, 9, 100]] = 5, 4, 3, 2


def test_without_a_smaller_head_the_base_s_own_is_read():
    base = base_of()
    np.testing.assert_array_equal(micro_logits(base, {}, HIDDEN), base.unembed(HIDDEN))


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_an_int8_head_is_nearly_the_base_s(name):
    base = base_of(name)
    exact, rough = base.unembed(HIDDEN), micro_logits(base, {ROLE: int8_head(base)}, HIDDEN)
    assert isinstance(int8_head(base).table, QArray)
    assert 0 < float(jnp.abs(exact - rough).max()) < 0.05 * float(jnp.abs(exact).max())


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_reduced_head_says_the_likeliest_tokens_and_those_that_end_a_text(name):
    base = base_of(name)
    head = reduced_head(base, COUNTS, 4, always=(258, 7))
    assert head.tokens.tolist() == [7, 9, 200, 258]
    logits, whole = micro_logits(base, {ROLE: head}, HIDDEN), base.unembed(HIDDEN)
    np.testing.assert_allclose(logits[:, head.tokens], whole[:, head.tokens], rtol=1e-5, atol=1e-5)
    assert int((logits > -jnp.inf).sum()) == 4 * 3
    everything = reduced_head(base, COUNTS, 259)
    np.testing.assert_allclose(everything.logits(HIDDEN), whole, rtol=1e-5, atol=1e-5)


def test_int8_weights_stay_int8_in_a_smaller_head():
    graphdef, params = nnx.split(base_of())
    base = nnx.merge(graphdef, jax.jit(quantise_params)(params))
    assert isinstance(base, Transformer)
    whole = base.unembed(HIDDEN)
    np.testing.assert_array_equal(int8_head(base).logits(HIDDEN), whole)
    head = reduced_head(base, COUNTS, 2)
    assert isinstance(head.table, QArray)
    np.testing.assert_allclose(head.logits(HIDDEN)[:, head.tokens], whole[:, head.tokens], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("counts", "size", "always", "complaint"),
    [
        (COUNTS, 260, (), "must have from 1 to 259 tokens; got 260"),
        (COUNTS, 1, (1, 2), "must have from 2 to 259 tokens; got 1"),
        (COUNTS[:5], 3, (), r"token_counts must be \[259\]; got \[5\]"),
    ],
)
def test_a_head_that_cannot_be_is_refused(counts, size, always, complaint):
    with pytest.raises(ValueError, match=complaint):
        reduced_head(base_of(), counts, size, always=always)


def test_a_head_is_sure_of_a_token_by_its_probability():
    inf, nan = np.inf, np.nan
    logits = jnp.asarray(np.random.default_rng(0).normal(0, 4, (60, 7)), jnp.float32)
    probability = np.asarray(jax.nn.softmax(logits, axis=-1).max(-1))
    for least in (0.0, 0.3, 0.9, 0.999):
        assert np.abs(probability - least).min() > 1e-5
        np.testing.assert_array_equal(sure(logits, jnp.float32(least)), probability >= least)
    # Of what a head cannot say, and of what is no number.
    odd = jnp.array([[-inf, 50.0, 0.0], [-inf, -inf, -inf], [0.0, nan, 0.0]])
    assert sure(odd, jnp.float32(1.0)).tolist() == [True, False, False]
