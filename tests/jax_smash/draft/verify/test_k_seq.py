import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from jax_smash.draft.verify.k_seq import KSeq
from jax_smash.draft.verify.rules import Independent


def arrive(p, q, children):
    return jax.jit(KSeq().arrive)(
        jnp.asarray(np.atleast_2d(p), jnp.float32),
        jnp.asarray(np.atleast_2d(q), jnp.float32),
        jnp.asarray(np.atleast_1d(children), jnp.int32),
    )


def random_pairs(count, vocab_size=7, seed=0):
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(vocab_size, 0.5), size=(2, count))
    return p, q


def emitted(trial):
    """Returns the distribution of what a node emits: a child, or what follows the refusal of all."""
    p, q, rho, k = (np.asarray(x, np.float64) for x in (trial.target, trial.proposal, trial.discount, trial.children))
    covered = np.minimum(q, p / rho[:, None])
    refused = (1 - covered.sum(1, keepdims=True)) ** k[:, None]
    tries = (1 - refused) / covered.sum(1, keepdims=True)
    return covered * tries + refused * np.asarray(KSeq().rest(trial), np.float64)


def test_two_children_by_hand():
    # β = 0.5/ρ and 1 − (1 − β)² = 0.5, so that β = 1 − √½.
    trial = arrive([0.5, 0.5], [1, 0], 2)
    np.testing.assert_allclose(trial.discount, 0.5 / (1 - np.sqrt(0.5)), rtol=1e-6)
    np.testing.assert_allclose(KSeq().rest(trial)[0], [0, 1], atol=1e-6)


def test_the_discount_solves_its_equation():
    p, q = random_pairs(30)
    for children in (2, 3, 8):
        trial = arrive(p, q, np.full(30, children))
        for row in range(30):

            def excess(rho, row=row, children=children):
                beta = np.minimum(q[row], p[row] / rho).sum()
                return 1 - (1 - beta) ** children - rho * beta

            rho = optimize.brentq(excess, 1, children)
            assert float(trial.discount[row]) == pytest.approx(rho, rel=2e-5)


@pytest.mark.parametrize("children", [1, 2, 5])
def test_a_node_emits_the_target(children):
    p, q = random_pairs(200, seed=children)
    np.testing.assert_allclose(emitted(arrive(p, q, np.full(200, children))), p, atol=3e-6)


def test_one_child_is_classic_speculative_sampling():
    p, q = random_pairs(20)
    trial = arrive(p, q, np.ones(20))
    np.testing.assert_array_equal(trial.discount, np.ones(20))
    classic = Independent().arrive(trial.target, trial.proposal, trial.children)
    after = Independent().refuse(classic, jnp.zeros(20, jnp.int32))
    np.testing.assert_allclose(KSeq().rest(trial), after.target, atol=1e-6)


def test_without_children_the_target_is_left():
    p, q = random_pairs(20)
    np.testing.assert_allclose(KSeq().rest(arrive(p, q, np.zeros(20))), p, atol=1e-6)
    np.testing.assert_allclose(KSeq().rest(arrive(p, p, np.zeros(20))), p, atol=1e-6)


def test_a_proposal_of_other_tokens_leaves_the_target():
    trial = arrive([0.3, 0.7, 0, 0], [0, 0, 0.5, 0.5], 3)
    np.testing.assert_allclose(KSeq().rest(trial)[0], [0.3, 0.7, 0, 0], atol=1e-6)


def test_a_proposal_that_equals_the_target_is_accepted_among_its_children():
    p, _ = random_pairs(20)
    trial = arrive(p, p, np.full(20, 4))
    assert ((1 - 1 / np.asarray(trial.discount)) ** 4 < 1e-6).all()
    rest = np.asarray(KSeq().rest(trial))
    np.testing.assert_allclose(rest.sum(1), 1, atol=1e-5)
    assert (rest[np.asarray(trial.target) == 0] == 0).all()


def test_a_refusal_changes_nothing():
    trial = arrive([0.5, 0.5], [0.9, 0.1], 2)
    assert KSeq().refuse(trial, jnp.zeros(1, jnp.int32)) is trial
