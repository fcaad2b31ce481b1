"""The choice of a budget on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.decode.budget import RESIZE_STEPS, Sizing, resized, seen_in_shadow
from jax_smash.draft.acceptance import acceptance
from jax_smash.draft.sizing import best_tree
from jax_smash.draft.tree import grow, tree_from_ranks

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
def test_the_fastest_rung_is_chosen_now_and_then_and_every_step_counted(seconds, best):
    ladder = tuple(best_tree(RATES, n, levels=min(n, 2)) for n in (0, 1, 8))
    sizing = Sizing(
        known=acceptance(RATES),
        seconds=jnp.asarray(seconds, jnp.float32),
        steps=jnp.zeros((), jnp.int32),
        used=jnp.zeros((3,), jnp.int32),
    )
    step = jax.jit(lambda ladder, choice, sizing: resized(ladder, choice, sizing))
    choice = jnp.int32(1)
    for _ in range(RESIZE_STEPS + 3):
        ladder, choice, sizing = step(ladder, choice, sizing)
    assert int(choice) == best
    assert int(sizing.steps) == RESIZE_STEPS + 3
    assert int(sizing.used[best]) == int(sizing.used.sum()) == RESIZE_STEPS + 3
