import numpy as np
import pytest
from scipy import stats

from eval.intervals import ratio_bootstrap, wilson


@pytest.mark.parametrize(("right", "n"), [(0, 1), (1, 1), (0, 10), (3, 10), (50, 100), (99, 100), (700, 1000)])
def test_the_interval_of_a_share_is_wilsons(right, n):
    found, expected = wilson(right, n), stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert (found.kind, found.confidence) == ("wilson", 0.95)


def test_the_bounds_of_eight_wrong_answers_are_those_worked_by_hand():
    # z² / (n + z²) with z = 1.959964.
    assert wilson(0, 8).low == 0
    assert wilson(0, 8).high == pytest.approx(3.841459 / 11.841459, abs=1e-6)


@pytest.mark.parametrize(("right", "n"), [(1, 0), (-1, 3), (4, 3)])
def test_an_impossible_share_is_refused(right, n):
    with pytest.raises(ValueError, match="0 <= successes <= n"):
        wilson(right, n)


def test_documents_that_all_agree_leave_no_doubt():
    found = ratio_bootstrap([2.0, 4.0, 6.0], [1, 2, 3])
    assert (found.low, found.high, found.kind) == (2.0, 2.0, "bootstrap")


def test_the_bootstrap_agrees_with_the_normal_interval_of_a_mean():
    values = np.random.default_rng(1).normal(3.0, 1.0, 400)
    found, error = ratio_bootstrap(values, np.ones(400)), values.std() / 20
    assert found.low == pytest.approx(values.mean() - 1.96 * error, abs=0.2 * error)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=0.2 * error)


def test_long_documents_count_for_more():
    few, many = ratio_bootstrap([1.0, 9.0], [1, 1]), ratio_bootstrap([1.0, 900.0], [1, 100])
    assert few.high == many.high == 9.0
    assert few.low == many.low == 1.0
    assert ratio_bootstrap([1.0, *[900.0] * 4], [1, *[100] * 4]).low > 8


def test_the_draws_are_the_same_each_time():
    values = np.random.default_rng(2).random(9)
    assert ratio_bootstrap(values, np.ones(9)) == ratio_bootstrap(values, np.ones(9))


def test_one_document_has_no_interval():
    assert ratio_bootstrap([1.0], [3]) is None
