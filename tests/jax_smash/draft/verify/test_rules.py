import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.draft.verify.k_seq import KSeq
from jax_smash.draft.verify.rules import Independent, WithoutReplacement, accepts, left_over

P, Q = [0.5, 0.3, 0.2], [0.2, 0.7, 0.1]


def arrive(rule, p, q, children=2):
    return rule.arrive(jnp.array([p], jnp.float32), jnp.array([q], jnp.float32), jnp.array([children], jnp.int32))


def token(x):
    return jnp.array([x], jnp.int32)


def threshold(trial, x):
    """Returns the least chance, in thousandths, at which a token is refused; 1 where it never is."""
    chances = jnp.arange(1000) / 1000
    accepted = np.asarray(jax.vmap(lambda chance: accepts(trial, token(x), chance[None]))(chances))[:, 0]
    assert (np.diff(accepted.astype(int)) <= 0).all()
    return accepted.sum() / 1000


@pytest.mark.parametrize("rule", [Independent(), WithoutReplacement()])
def test_a_child_is_accepted_with_the_quotient_of_its_probabilities(rule):
    trial = arrive(rule, P, Q)
    assert [threshold(trial, x) for x in range(3)] == pytest.approx([1, 3 / 7, 1], abs=2e-3)


def test_an_independent_refusal_takes_the_proposal_from_the_target():
    once = Independent().refuse(arrive(Independent(), P, Q), token(1))
    np.testing.assert_allclose(once.target[0], [0.75, 0, 0.25], atol=1e-6)
    np.testing.assert_allclose(once.proposal[0], Q, atol=1e-6)
    twice = Independent().refuse(once, token(1))
    np.testing.assert_allclose(twice.target[0], np.array([0.55, 0, 0.15]) / 0.7, atol=1e-6)
    np.testing.assert_array_equal(Independent().rest(twice), twice.target)
    assert threshold(twice, 1) == 0


def test_a_refusal_without_replacement_also_takes_the_token_from_the_proposal():
    rule = WithoutReplacement()
    once = rule.refuse(arrive(rule, P, Q), token(1))
    np.testing.assert_allclose(once.target[0], [0.75, 0, 0.25], atol=1e-6)
    np.testing.assert_allclose(once.proposal[0], [2 / 3, 0, 1 / 3], atol=1e-6)
    assert threshold(once, 2) == pytest.approx(0.75, abs=2e-3)
    twice = rule.refuse(once, token(2))
    np.testing.assert_allclose(twice.target[0], [1, 0, 0], atol=1e-6)
    np.testing.assert_allclose(twice.proposal[0], [1, 0, 0], atol=1e-6)


def test_a_proposal_that_is_used_up_accepts_nothing_and_takes_nothing():
    rule = WithoutReplacement()
    trial = arrive(rule, [0.4, 0.6, 0], [0, 0, 1])
    for _ in range(3):
        trial = rule.refuse(trial, token(2))
        np.testing.assert_array_equal(trial.proposal[0], [0, 0, 0])
        np.testing.assert_allclose(trial.target[0], [0.4, 0.6, 0])
        assert [threshold(trial, x) for x in range(3)] == [0, 0, 0]


def test_a_token_that_the_proposal_cannot_have_drawn_is_accepted_only_where_the_target_is_certain():
    for rule in (Independent(), WithoutReplacement(), KSeq()):
        assert threshold(arrive(rule, [0.5, 0.5, 0], [0, 0.5, 0.5]), 0) == 0
        sure = arrive(rule, [1, 0, 0], [0, 0.5, 0.5])
        assert [threshold(sure, x) for x in range(3)] == [1, 0, 0]


def test_where_nothing_is_left_the_target_stays():
    p = jnp.array([P, [0.5, 0.5, 0]], jnp.float32)
    np.testing.assert_array_equal(left_over(p, p), p)
    np.testing.assert_array_equal(left_over(p, jnp.ones_like(p)), p)
    np.testing.assert_allclose(left_over(p, jnp.array([Q, P])), [[0.75, 0, 0.25], [0, 1, 0]], atol=1e-6)


def test_rules_of_one_kind_are_one_rule():
    assert Independent() == Independent()
    assert len({Independent(), WithoutReplacement(), KSeq(), KSeq(), Independent()}) == 3
