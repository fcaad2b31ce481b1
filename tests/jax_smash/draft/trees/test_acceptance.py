"""Acceptance learned on the device, and what follows from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.draft.trees import sizing
from jax_smash.draft.trees.acceptance import (
    PRIOR_TRIALS,
    acceptance,
    expected_tokens,
    likeliest_tree,
    observe,
    prior_rates,
    sibling_ranks,
)
from jax_smash.draft.trees.sizing import best_tree
from jax_smash.draft.trees.tree import grow, topology, tree_from_ranks, tree_of
from jax_smash.draft.verify.accept import accept

TREE = tree_from_ranks([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]])
NONE = np.zeros((3, 4), np.float32)


def observed(*targets: list[int], tokens: list[int], running: list[bool] | None = None, rates=NONE):
    """Returns what was learned from one verified step of `TREE`, as hits and trials without the prior's."""
    batch = len(targets)
    tree = grow(TREE, jnp.asarray([tokens] * batch, jnp.int32))
    rows = jnp.asarray([True] * batch if running is None else running)
    accepted = accept(tree, jnp.asarray(targets, jnp.int32))
    rank = jnp.broadcast_to(TREE.rank, tree.token.shape)
    known = jax.jit(observe)(acceptance(rates, memory=1e9), tree, accepted, rank, rows)
    return np.asarray(known.hits), np.asarray(known.trials) - PRIOR_TRIALS


# Nodes: root, [0], [1], [2], [0,0], [0,1], [1,0], [0,0,0].
TOKENS = [9, 10, 11, 12, 20, 21, 22, 30]


def test_a_kept_path_is_a_hit_at_each_depth_and_a_trial_of_every_sibling():
    # The root chooses 10, that node chooses 21, a leaf.
    hits, trials = observed([10, 21, 0, 0, 0, 0, 0, 0], tokens=TOKENS)
    np.testing.assert_allclose(hits, [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(trials, [[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]], atol=1e-5)


def test_what_hangs_below_a_rejected_node_is_no_trial():
    hits, trials = observed([5, 20, 22, 0, 30, 0, 0, 0], tokens=TOKENS)
    assert hits.sum() == 0
    np.testing.assert_allclose(trials, [[1, 1, 1, 0], [0] * 4, [0] * 4], atol=1e-5)


def test_a_place_that_was_left_empty_is_a_trial_that_failed():
    hits, trials = observed([10, 20, 0, 0, 0, 0, 0, 0], tokens=[9, 10, 11, 12, -1, 21, 22, 30])
    np.testing.assert_allclose(hits.sum(1), [1, 0, 0], atol=1e-6)
    np.testing.assert_allclose(trials[1], [1, 1, 0, 0], atol=1e-5)


def test_rows_add_up_and_ended_rows_do_not_count():
    one = [10, 21, 0, 0, 0, 0, 0, 0]
    other = [11, 0, 22, 0, 0, 0, 0, 0]
    both = observed(one, other, tokens=TOKENS)
    apart = observed(one, tokens=TOKENS), observed(other, tokens=TOKENS)
    for i in range(2):
        np.testing.assert_allclose(both[i], apart[0][i] + apart[1][i], atol=1e-5)
    half = observed(one, other, tokens=TOKENS, running=[False, True])
    np.testing.assert_allclose(half[0], apart[1][0], atol=1e-6)


def test_ranks_and_depths_past_the_table_are_left_out():
    narrow = np.zeros((1, 2), np.float32)
    hits, trials = observed([12, 0, 0, 0, 0, 0, 0, 0], tokens=TOKENS, rates=narrow)
    assert hits.sum() == 0
    np.testing.assert_allclose(trials, [[1, 1]], atol=1e-5)


def test_a_table_deeper_than_the_path_learns_its_part():
    deep = np.zeros((6, 4), np.float32)
    hits, trials = observed([10, 20, 0, 0, 30, 0, 0, 0], tokens=TOKENS, rates=deep)
    np.testing.assert_allclose(hits.sum(1), [1, 1, 1, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(trials.sum(1), [3, 2, 1, 0, 0, 0], atol=1e-4)


def test_the_prior_falls_by_rank_and_may_differ_below_the_first_level():
    np.testing.assert_allclose(prior_rates(2, 3), [[0.4, 0.16, 0.064]] * 2, rtol=1e-6)
    rates = prior_rates(3, 2, first=0.5, deeper=0.8, fall=0.1)
    np.testing.assert_allclose(rates, [[0.5, 0.05], [0.8, 0.08], [0.8, 0.08]], rtol=1e-6)
    assert rates.dtype == np.float32


def test_rates_go_from_the_prior_to_what_is_seen():
    prior = prior_rates(2, 3)
    truth = np.array([[0.1, 0.5, 0.2], [0.3, 0.05, 0.6]])
    rng = np.random.default_rng(0)
    known = acceptance(prior)
    np.testing.assert_allclose(known.rates(), prior, rtol=1e-6)
    tried = jnp.ones((64, 2, 3), bool)
    update = jax.jit(lambda known, hit: known.update(hit, tried))
    for _ in range(60):
        hit = [[rng.choice([0, 1, 2, -1], p=[*t, 1 - t.sum()]) for t in truth] for _ in range(64)]
        known = update(known, jnp.asarray(hit, jnp.int32))
    np.testing.assert_allclose(known.rates(), truth, atol=0.08)


def test_what_was_long_ago_is_forgotten_but_not_what_was_no_longer_tried():
    known = acceptance(np.full((2, 1), 0.5, np.float32), memory=20.0)
    tried = jnp.asarray([[[True], [False]]])
    for _ in range(200):
        known = known.update(jnp.asarray([[0, -1]], jnp.int32), tried)
    np.testing.assert_allclose(known.rates()[0], 1.0, atol=1e-3)
    assert known.trials[0, 0] < 22
    np.testing.assert_allclose(known.rates()[1], 0.5)
    for _ in range(200):
        known = known.update(jnp.asarray([[-1, -1]], jnp.int32), tried)
    np.testing.assert_allclose(known.rates()[0], 0.0, atol=1e-3)


def test_siblings_are_numbered_in_order_and_padding_not():
    tree = tree_of(
        jnp.asarray([[1, 2, 3, 4, 5]], jnp.int32),
        jnp.asarray([[0, 0, 0, 1, 0]], jnp.int32),
        jnp.asarray([[True, True, False, True, True]]),
        levels=2,
    )
    np.testing.assert_array_equal(sibling_ranks(tree), [[-1, 0, -1, 0, 1]])


def rates_of(seed: int, levels: int = 4, ranks: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(ranks + 1), size=levels)[:, :ranks].astype(np.float32)


@pytest.mark.parametrize("seed", range(3))
def test_expected_tokens_agree_with_the_host(seed):
    rates = rates_of(seed)
    for tree in (best_tree(rates, 40), topology([0]), tree_from_ranks([[0], [6], [0, 3], [6, 0], [0, 3, 1]])):
        ours = jax.jit(expected_tokens)(jnp.asarray(rates), tree)
        np.testing.assert_allclose(ours, sizing.expected_tokens(rates, tree), rtol=1e-5)


def test_expected_tokens_of_a_tree_deeper_than_the_rates_stop_there():
    rates = np.full((2, 1), 0.5, np.float32)
    deep = tree_from_ranks([[0], [0, 0], [0, 0, 0]])
    np.testing.assert_allclose(expected_tokens(jnp.asarray(rates), deep), 1.75)


def after_trials(known, kept):
    """Returns what is known after trials of a root's only child, by whether each kept it; and the rates in between."""
    update, rates = jax.jit(type(known).update), []
    tried = jnp.ones((1, 1, 1), bool)
    for hit in kept:
        known = update(known, jnp.full((1, 1), 0 if hit else -1, jnp.int32), tried)
        rates.append(float(known.rates()[0, 0]))
    return known, np.array(rates)


def test_a_text_that_changes_is_noticed_within_a_few_dozen_trials():
    rng = np.random.default_rng(0)
    known, _ = after_trials(acceptance(np.full((1, 1), 0.5, np.float32)), rng.random(600) < 0.9)
    _, falling = after_trials(known, [False] * 48)
    assert falling[-1] < 0.3
    # The control: what a memory without surprise would say.
    trials = float(known.trials[0, 0])
    assert 0.9 * trials / (trials + 48) > 0.7
    known, _ = after_trials(acceptance(np.full((1, 1), 0.5, np.float32)), rng.random(600) < 0.05)
    assert after_trials(known, [True] * 48)[1][-1] > 0.7


def test_a_text_that_goes_on_as_before_is_remembered():
    rng = np.random.default_rng(1)
    known, rates = after_trials(acceptance(np.full((1, 1), 0.5, np.float32)), rng.random(800) < 0.6)
    assert float(known.trials[0, 0]) > 300
    assert np.abs(rates[200:] - 0.6).max() < 0.1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("nodes", [1, 2, 9, 40])
def test_a_tree_grown_on_the_device_is_the_best_of_its_size(seed, nodes):
    rates = rates_of(seed)
    tree = jax.jit(likeliest_tree, static_argnames=("nodes", "levels"))(jnp.asarray(rates), nodes=nodes, levels=6)
    # Building it anew checks it: parents first, no two of a rank, bits and depths that follow from the parents.
    again = topology(tree.parent.tolist(), tree.rank.tolist(), levels=6)
    for grown, built in zip(jax.tree.leaves(tree), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(grown, built)
    best = sizing.most_expected(rates.astype(np.float64), nodes - 1)
    assert sizing.expected_tokens(rates, tree) == pytest.approx(best, rel=1e-5)


def test_a_grown_tree_takes_every_place_there_is():
    tree = likeliest_tree(jnp.zeros((2, 2), jnp.float32), nodes=7)
    again = topology(tree.parent.tolist(), tree.rank.tolist(), levels=2)
    np.testing.assert_array_equal(tree.ancestors, again.ancestors)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: likeliest_tree(jnp.zeros((2, 2)), nodes=8), "nodes must be from 1 to 7; got 8"),
        (lambda: likeliest_tree(jnp.zeros((2, 2)), nodes=3, levels=1), "levels must be at least 2"),
        (lambda: acceptance(np.full((1, 1), 1.5, np.float32)), "rates must be from 0 to 1"),
        (lambda: acceptance(np.zeros((1, 1), np.float32), memory=0.0), "memory must be over 0"),
    ],
)
def test_what_cannot_be_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
