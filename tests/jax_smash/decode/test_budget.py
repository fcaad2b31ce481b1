"""The choice of a budget on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.decode.budget import ROUND_STEPS, changed_if, resized, seen_in_shadow, unused
from jax_smash.draft.trees.acceptance import acceptance
from jax_smash.draft.trees.sizing import best_tree, expected_tokens
from jax_smash.draft.trees.tree import grow, tree_from_ranks
from jax_smash.pytree import replace

RATES = np.array([[0.5, 0.2, 0.1], [0.6, 0.1, 0.05]], np.float32)
TREE = tree_from_ranks([[0], [1], [2], [0, 0], [1, 0]])


def seen(tokens, rank, target, running=(True,)):
    known = acceptance(RATES, memory=1e9)
    tree = grow(TREE, jnp.asarray(tokens, jnp.int32))
    after = seen_in_shadow(
        known,
        tree,
        jnp.asarray(rank, jnp.int32) if rank is not None else tree.rank,
        jnp.asarray(target, jnp.int32),
        jnp.asarray(running),
    )
    return np.asarray(after.hits - known.hits).round(4).tolist(), np.asarray(after.trials - known.trials).round(
        4
    ).tolist()


def test_only_the_root_s_children_are_compared():
    # The grandchild 7 is the emitted token too, but its parent was not.
    hits, trials = seen([[1, 5, 6, 4, 7, 7]], None, [6])
    assert hits == [[0, 1, 0], [0, 0, 0]]
    assert trials == [[1, 1, 1], [0, 0, 0]]
    assert seen([[1, 5, 6, 4, 7, 7]], None, [7])[0] == [[0, 0, 0], [0, 0, 0]]


def test_a_place_left_empty_is_a_failed_trial_and_a_negative_rank_none():
    hits, trials = seen([[1, 5, -1, 4, 7, 7]], None, [0])
    assert (hits[0], trials[0]) == ([0, 0, 0], [1, 1, 1])
    hits, trials = seen([[1, 5, 6, 4, 7, 7]], [[0, 0, -1, 1, 0, 0]], [6])
    assert (hits[0], trials[0]) == ([0, 0, 0], [1, 1, 0])


def test_each_row_tells_its_own_ranks_and_ended_rows_nothing():
    hits, trials = seen(
        [[1, 5, 6, 4, 7, 7]] * 3,
        [[0, 0, 1, 2, 0, 0], [0, 2, 1, 0, 0, 0], [0, 0, 1, 2, 0, 0]],
        [5, 5, 5],
        [True, True, False],
    )
    assert hits[0] == [1, 0, 1]
    assert trials[0] == [2, 2, 2]


@pytest.mark.parametrize(("seconds", "best"), [((1.0, 1.1, 1.2), 2), ((1.0, 1.1, 9.0), 1), ((1.0, 2.5, 9.0), 0)])
def test_the_fastest_rung_is_chosen_at_the_end_of_a_round(seconds, best):
    ladder = tuple(best_tree(RATES, n, levels=min(n, 2)) for n in (0, 1, 8))
    choose = jax.jit(resized)
    for steps in range(ROUND_STEPS - 1, 2 * ROUND_STEPS + 1):
        sizing = replace(unused(RATES, ladder, seconds), steps=jnp.asarray(steps, jnp.int32))
        before = jnp.int32((best + 1) % 3)
        trees, choice, after = choose(ladder, before, sizing)
        np.testing.assert_allclose(after.expected, sizing.expected, rtol=1e-6)
        assert int(choice) == (best if steps % ROUND_STEPS == 0 else before)
        assert [tree.nodes for tree in trees] == [1, 2, 9]


def test_the_tree_with_most_tokens_a_second_is_chosen_from_traced_rates():
    ladder = tuple(best_tree(RATES, n, levels=min(n, 2)) for n in (0, 2, 8))
    seconds = [1.0, 1.2, 1.6]
    choose = jax.jit(lambda *args: resized(*args))
    for scale in (0.0, 0.2, 0.7, 1.0):
        rates = RATES * np.float32(scale)
        speeds = [
            expected_tokens(rates, best_tree(rates, t.nodes - 1)) / s for t, s in zip(ladder, seconds, strict=True)
        ]
        _, choice, after = choose(ladder, jnp.int32(0), unused(rates, ladder, seconds))
        assert int(choice) == int(np.argmax(speeds))
        np.testing.assert_allclose(after.expected / jnp.asarray(seconds), speeds, rtol=1e-5)
    # What takes for ever is never chosen.
    assert int(choose(ladder, jnp.int32(0), unused(RATES, ladder, [np.inf, 1.0, np.inf]))[1]) == 1
    assert choose._cache_size() == 1


def test_a_change_is_made_once_and_only_where_it_is_due():
    change = jax.jit(lambda due, number: changed_if(due, lambda x: x + 1, number))
    assert int(change(jnp.bool_(True), jnp.int32(4))) == 5
    assert int(change(jnp.bool_(False), jnp.int32(4))) == 4
