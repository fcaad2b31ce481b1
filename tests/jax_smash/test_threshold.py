"""The highest of many numbers, beside a sort."""

import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.threshold import mark_highest, marks_before


@pytest.mark.parametrize("count", [0, 1, 4, 11, 12, 20])
def test_of_equal_scores_the_first_are_marked(count):
    rng = np.random.default_rng(count)
    scores = rng.integers(-3, 3, (6, 4, 12)).astype(np.float32) / 2
    candidates = rng.random((6, 1, 12)) < 0.8
    found = mark_highest(jnp.asarray(scores), jnp.asarray(candidates), jnp.full((6, 1), count, jnp.int32))
    for row in np.ndindex(6, 4):
        allowed = candidates[row[0], 0]
        best = np.argsort(np.where(allowed, -scores[row], np.inf), kind="stable")[: min(count, allowed.sum())]
        np.testing.assert_array_equal(np.flatnonzero(found[row]), np.sort(best))


@pytest.mark.parametrize("length", [1, 63, 64, 65, 1000])
def test_marks_are_counted_over_pieces_of_any_number(length):
    marks = np.random.default_rng(length).random((2, 3, length)) < 0.7
    np.testing.assert_array_equal(marks_before(jnp.asarray(marks)), np.cumsum(marks, -1) - marks)
