import numpy as np
import pytest
from scipy import stats

from eval.scores.intervals import interval_of_mean, interval_of_mean_difference, ratio_bootstrap, tango, wilson


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


PAIRS = [
    (gained, lost, n) for n in (6, 40, 5000) for gained in (0, 1, 3, 6) for lost in (0, 2, 6) if gained + lost <= n
]
PAIRS += [(1, 0, 1), (0, 2, 2), (50, 0, 50)]


@pytest.mark.parametrize(("gained", "lost", "n"), PAIRS)
def test_the_interval_of_pairs_excludes_nothing_where_mcnemars_test_finds_nothing(gained, lost, n):
    found = tango(gained, lost, n)
    assert -1 <= found.low <= (gained - lost) / n <= found.high <= 1
    significant = (gained - lost) ** 2 > 3.841459 * (gained + lost)
    assert (found.low > 0 or found.high < 0) == significant


@pytest.mark.parametrize(("gained", "lost", "n"), PAIRS)
def test_the_bounds_of_pairs_solve_the_score_equation(gained, lost, n):
    found = tango(gained, lost, n)
    for bound in {found.low, found.high} - {-1.0, 1.0}:
        # The likeliest share lost, given the difference, maximises the likelihood of the three kinds of pairs.
        least, most = max(0.0, -bound), (1 - bound) / 2
        share = least + np.geomspace(1e-12, most - least, 50_001)[:-1]
        likelihood = (
            lost * np.log(share) + gained * np.log(share + bound) + (n - gained - lost) * np.log1p(-2 * share - bound)
        )
        variance = (2 * share[likelihood.argmax()] + bound - bound**2) / n
        assert ((gained - lost) / n - bound) ** 2 == pytest.approx(3.841459 * variance, rel=2e-3)


def test_the_bounds_of_eight_pairs_that_all_agree_are_those_worked_by_hand():
    found = tango(0, 0, 8)
    assert found.high == -found.low == pytest.approx(3.841459 / 11.841459, abs=1e-6)


def test_nineteen_of_twenty_such_intervals_hold_the_true_difference():
    drawn = np.random.default_rng(3).multinomial(80, [0.15, 0.05, 0.8], 600)
    held = [found.low <= 0.1 <= found.high for found in (tango(int(a), int(b), 80) for a, b, _ in drawn)]
    assert 0.93 < np.mean(held) < 0.97


def test_the_order_of_a_pair_is_the_sign_of_its_difference():
    one, other = tango(7, 2, 50), tango(2, 7, 50)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-9)


@pytest.mark.parametrize(("gained", "lost", "n"), [(0, 0, 0), (-1, 2, 5), (3, 3, 5)])
def test_impossible_pairs_are_refused(gained, lost, n):
    with pytest.raises(ValueError, match="0 <= gained"):
        tango(gained, lost, n)


@pytest.mark.parametrize("score", [0, 1.0])
def test_scores_that_are_all_0_or_all_1_leave_the_doubt_of_a_share(score):
    assert interval_of_mean([score] * 8) == wilson(8 * int(score), 8)
    mixed = [score] * 7 + [0.5]
    assert interval_of_mean(mixed) == ratio_bootstrap(mixed, [1] * 8)
    assert interval_of_mean([score]) is None


def test_pairs_of_which_none_differs_leave_the_doubt_of_as_many_shares():
    assert interval_of_mean_difference([0.0] * 8) == tango(0, 0, 8)
    one = [0.0] * 7 + [0.5]
    assert interval_of_mean_difference(one) == ratio_bootstrap(one, [1] * 8)
    assert interval_of_mean_difference([0.0]) is None


def test_documents_of_size_0_have_no_ratio():
    found = ratio_bootstrap([0.0, 0.0, 6.0], [0, 0, 3])
    assert (found.low, found.high) == (2.0, 2.0)
    assert ratio_bootstrap([0.0, 0.0], [0, 0]) is None


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
