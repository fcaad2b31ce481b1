import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.models.short_head import ShortHead, check_tokens, said_of, saying
from jax_smash.quantise import quantise_params
from tests.tiny import tiny_model

SAID = np.asarray([3, 4, 17, 60, 61, 99, 200, 258])


def bound_and_hidden(**changes):
    model = tiny_model(**changes)
    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, model.config.d_model)), jnp.float32)
    return model, model.definition.bind(model.params["target"]), hidden


@pytest.mark.parametrize("changes", [{}, {"tied_head": True}, {"logits_divisor": 3.0, "final_softcap": 2.0}])
@pytest.mark.parametrize("int8", [False, True])
def test_it_says_what_the_target_does_of_these_tokens_and_nothing_else(changes, int8):
    model, _, hidden = bound_and_hidden(**changes)
    params = quantise_params(model.params["target"]) if int8 else model.params["target"]
    target = model.definition.bind(params)
    said = saying(model.definition, {"target": params, "said": said_of(target, SAID)})
    assert isinstance(said, ShortHead)
    logits, expected = said.unembed(hidden), target.unembed(hidden)
    np.testing.assert_allclose(logits[..., SAID], expected[..., SAID], rtol=1e-5, atol=1e-5)
    assert np.isneginf(np.delete(np.asarray(logits), SAID, axis=-1)).all()
    found = said.likeliest(hidden, 3, total=True, keep=True)
    order = np.argsort(-np.asarray(expected)[..., SAID], axis=-1, kind="stable")[..., :3]
    np.testing.assert_array_equal(found.tokens, SAID[order])
    np.testing.assert_allclose(found.total, jax.nn.logsumexp(logits, axis=-1), rtol=1e-5)
    np.testing.assert_allclose(found.logits, logits, rtol=1e-5, atol=1e-5)


def test_without_such_tokens_it_is_the_target():
    model, target, hidden = bound_and_hidden()
    said = saying(model.definition, {"target": model.params["target"]})
    np.testing.assert_array_equal(said.unembed(hidden), target.unembed(hidden))


def test_vectors_of_tokens_are_the_targets():
    model, target, _ = bound_and_hidden()
    said = saying(model.definition, {"target": model.params["target"], "said": said_of(target, SAID)})
    tokens = jnp.asarray([[1, 2, 3]])
    np.testing.assert_array_equal(said.embed(tokens), target.embed(tokens))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([1, 2], "tokens must be 3 ids; got int64"),
        ([1, 2, 2], "tokens must be ids from 0 to 9 in rising order, each once"),
        ([2, 1, 3], "in rising order"),
        ([-1, 1, 3], "ids from 0 to 9"),
        ([1, 3, 10], "ids from 0 to 9"),
    ],
)
def test_other_tokens_are_refused(tokens, message):
    check_tokens(np.asarray([0, 4, 9]), 3, 10)
    with pytest.raises(ValueError, match=message):
        check_tokens(np.asarray(tokens), 3, 10)
