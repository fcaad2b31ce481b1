import math

import numpy as np
import pytest

from eval.scores.intervals import tango
from eval.scores.paired import difference_of_means, difference_of_nats, difference_of_shares


def scored(scores):
    return [{"example": str(i), "score": score} for i, score in enumerate(scores)]


def documents(nats, tokens):
    return [{"score": math.exp(n / t), "nats": n, "tokens": t} for n, t in zip(nats, tokens, strict=True)]


def random_scores(count, share, seed):
    return [int(u < share) for u in np.random.default_rng(seed).random(count)]


@pytest.mark.parametrize("difference", [difference_of_shares, difference_of_means])
def test_the_same_scores_differ_by_exactly_nothing(difference):
    examples = scored(random_scores(60, 0.7, 0))
    found = difference(examples, examples)
    assert (found.value, found.higher, found.lower) == (0, 0, 0)
    assert found.interval.low <= 0 <= found.interval.high


def test_the_same_documents_differ_by_exactly_nothing():
    examples = documents([10.5, 20.25, 7.125], [3, 9, 2])
    found = difference_of_nats(examples, examples)
    assert (found.value, found.interval.low, found.interval.high, found.higher, found.lower) == (0, 0, 0, 0, 0)


def test_five_thousand_equal_answers_show_a_method_to_be_within_a_point():
    found = difference_of_shares(scored([1] * 5000), scored([1] * 5000))
    assert -0.001 < found.interval.low < 0 < found.interval.high < 0.001
    few = difference_of_shares(scored([1] * 20), scored([1] * 20))
    assert few.interval.low < -0.1
    assert few.interval.high > 0.1


def test_equal_means_leave_the_doubt_of_equal_shares():
    examples = scored([0.5, 0.75, 1.0] * 10)
    assert difference_of_means(examples, examples).interval == tango(0, 0, 30)


@pytest.mark.parametrize("difference", [difference_of_shares, difference_of_means])
def test_a_loss_of_two_points_among_five_thousand_is_found(difference):
    baseline = scored(random_scores(5000, 0.8, 1))
    worse = [e | {"score": e["score"] * keep} for e, keep in zip(baseline, random_scores(5000, 0.975, 2), strict=True)]
    found = difference(worse, baseline)
    assert found.higher == 0
    assert found.value == pytest.approx(-found.lower / 5000)
    assert -0.03 < found.interval.low < found.interval.high < -0.01


def test_pairs_find_what_the_scores_alone_would_not():
    baseline = scored([1] * 50 + [0] * 50)
    better = scored([1] * 60 + [0] * 40)
    assert difference_of_shares(better, baseline).interval.low > 0


def test_a_difference_of_means_is_that_of_the_pairs():
    found = difference_of_means(scored([0.5, 1.0, 0.25, 0.5]), scored([0.25, 0.75, 0.5, 0.5]))
    assert found.value == 0.0625
    assert (found.unit, found.higher, found.lower) == ("mean", 2, 1)
    assert -0.25 <= found.interval.low < 0.0625 < found.interval.high <= 0.25


def test_long_documents_count_for_more_and_a_constant_loss_a_token_leaves_no_doubt():
    tokens = [10, 20, 400]
    baseline = documents([30.0, 50.0, 900.0], tokens)
    found = difference_of_nats(documents([31.0, 52.0, 940.0], tokens), baseline)
    assert (found.value, found.unit, found.higher) == (0.1, "nats per token", 3)
    assert (found.interval.low, found.interval.high) == pytest.approx((0.1, 0.1))
    assert difference_of_nats(documents([30.0, 50.0, 943.0], tokens), baseline).value == 0.1


def test_one_document_has_no_interval():
    assert difference_of_nats(documents([3.0], [2]), documents([2.0], [2])).interval is None
