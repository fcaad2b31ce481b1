"""What steps take, learned from simulated calls."""

import numpy as np
import pytest

from jax_smash.costs.follow import FIRST_STEPS, MARGIN, Call, Follower, Made

QUIET = 64
"""Steps of a call."""


class Machine:
    """Makes steps that take a known time each; counts them by the tree that was drafted."""

    def __init__(self, costs, seconds=0.01, noise=None):
        self.costs, self.seconds, self.noise = np.asarray(costs), seconds, noise
        self.steps, self.calls = np.zeros(len(costs), int), []

    def run(self, follower, expected, steps):
        """Makes steps, in calls that the follower plans."""
        expected, left = np.asarray(expected), steps
        while left:
            call = follower.next(expected, left)
            used = np.zeros(len(self.costs), int)
            used[call.rung] = call.steps
            took = call.steps * self.seconds * self.costs[call.rung] * (1 if self.noise is None else self.noise())
            follower.heard(call, Made(used, took, expected, emitted=1.0))
            self.steps += used
            self.calls.append(call)
            left -= call.steps

    def share(self, expected):
        """Returns the speed that was reached, in that of plain decoding."""
        return float((self.steps * np.asarray(expected)).sum() / (self.steps * self.costs).sum())


CURVES = {"too cheap": 1 / 3, "right": 1.0, "too dear": 3.0}


def curve(costs, factor):
    """Returns a cost curve whose drafted steps are wrong by a factor."""
    return [1.0, *(max(1.0, factor * c) for c in costs[1:])]


@pytest.mark.parametrize("factor", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("expected", [(1.0, 1.4, 1.8), (1.0, 1.6, 2.0), (1.0, 1.0, 1.0)])
@pytest.mark.parametrize("costs", [(1.0, 1.9, 3.0), (1.0, 4.0, 20.0), (1.0, 6.0, 60.0)])
def test_where_no_tree_pays_plain_decoding_is_hardly_slowed(costs, expected, factor):
    follower, machine = Follower(curve(costs, factor)), Machine(costs)
    machine.run(follower, expected, 1_000)
    assert machine.share(expected) > 0.97
    assert machine.calls[-1].rung == 0


@pytest.mark.parametrize("factor", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize(
    ("costs", "expected", "best"),
    [((1.0, 1.1, 1.2), (1.0, 1.8, 2.6), 2), ((1.0, 1.3, 2.6), (1.0, 1.6, 2.4), 1), ((1.0, 3.0, 3.0), (1, 2, 4.0), 2)],
)
def test_a_tree_that_pays_is_found_whatever_the_curve_says(costs, expected, best, factor):
    follower, machine = Follower(curve(costs, factor)), Machine(costs)
    machine.run(follower, expected, 20 * QUIET)
    assert machine.calls[-1].rung == best
    settled = Machine(costs)
    settled.run(follower, expected, 10 * QUIET)
    assert settled.share(expected) > 0.95 * expected[best] / costs[best]


def test_a_wrong_curve_is_paid_for_once_by_all_caches():
    costs, expected = [1.0, 4.0, 20.0], [1.0, 1.6, 2.0]
    relatives = []
    followers = [Follower(curve(costs, 1 / 3), relatives=relatives) for _ in range(2)]
    relatives += followers
    first, second = Machine(costs), Machine(costs)
    first.run(followers[0], expected, 2 * QUIET)
    second.run(followers[1], expected, 2 * QUIET)
    assert first.steps[1]
    assert second.steps.tolist() == [2 * QUIET, 0, 0]


def test_a_relative_does_not_hide_a_tree_that_pays():
    relatives = []
    followers = [Follower([1.0, 4.0, 20.0], relatives=relatives) for _ in range(2)]
    relatives += followers
    for follower in followers:
        machine = Machine([1.0, 1.2, 4.0])
        machine.run(follower, [1.0, 1.8, 2.0], 20 * QUIET)
        assert machine.calls[-1].rung == 1


def test_a_follower_that_never_measures_would_lose():
    """The control of the two above: what a curve says alone."""
    costs, expected = np.array([1.0, 4.0, 20.0]), np.array([1.0, 1.6, 2.0])
    chosen = int(np.argmax(expected / curve(costs, 1 / 3)))
    assert chosen > 0
    assert expected[chosen] / costs[chosen] < 0.5


def test_smaller_trees_are_tried_first_and_larger_ones_not_if_they_cannot_pay():
    follower, machine = Follower([1.0, 1.1, 1.2]), Machine([1.0, 4.0, 9.0])
    machine.run(follower, [1.0, 2.0, 3.0], 300)
    tried = [call.rung for call in machine.calls if call.alone]
    assert tried[:2] == [0, 1]
    assert 2 not in tried


def test_a_flat_curve_drafts_the_largest_tree_within_three_calls():
    follower, machine = Follower([1.0, 1.0, 1.0]), Machine([1.0, 1.0, 1.0])
    machine.run(follower, [1.0, 2.5, 4.0], 2 * QUIET)
    assert [call.rung for call in machine.calls[:3]] == [0, 1, 2]
    assert machine.steps[2] > 0.75 * machine.steps.sum()


def test_what_was_measured_on_a_busy_machine_is_measured_again():
    follower, machine = Follower([1.0, 1.2]), Machine([1.0, 1.2])
    slow = iter([1.0, 2.0])
    machine.noise = lambda: next(slow, 1.0)
    machine.run(follower, [1.0, 2.0], QUIET)
    assert follower.costs[1] == pytest.approx(2.4)
    assert machine.calls[-1].rung == 0
    machine.run(follower, [1.0, 2.0], 8 * QUIET)
    assert follower.costs[1] == pytest.approx(1.2)
    assert machine.calls[-1].rung == 1


def test_what_runs_slowly_once_is_measured_again_and_what_is_always_slow_is_believed():
    expected = np.asarray((1.0, 1.8))

    def measured(costs):
        follower = Follower([1.0, 1.4])
        for cost in costs:
            follower.heard(Call(0, 8, alone=True), Made(np.asarray([8, 0]), 0.08, expected, emitted=1.0))
            follower.heard(Call(1, 8, alone=True), Made(np.asarray([0, 8]), 0.08 * cost, expected, emitted=1.0))
        return follower.costs[1]

    # Each width of a forward runs for a first time.
    np.testing.assert_allclose(measured((9.0, 1.3, 30.0, 1.3, 7.0)), 1.3)
    np.testing.assert_allclose(measured((9.0,) * 5), 9.0)


def test_on_a_noisy_machine_nothing_is_lost_either():
    rng = np.random.default_rng(0)
    follower, machine = Follower([1.0, 1.3, 2.0]), Machine([1.0, 2.0, 4.0])
    machine.noise = lambda: float(rng.choice([1.0, 1.5, 3.0], p=[0.7, 0.2, 0.1]))
    machine.run(follower, [1.0, 1.5, 2.0], 3_000)
    assert machine.share([1.0, 1.5, 2.0]) > 0.95


def test_a_machine_that_gets_slower_changes_no_cost():
    follower, machine = Follower([1.0, 1.5]), Machine([1.0, 1.5])
    machine.run(follower, [1.0, 2.0], 2 * QUIET)
    machine.seconds = 0.05
    machine.run(follower, [1.0, 2.0], 20 * QUIET)
    assert follower.costs[1] == pytest.approx(1.5)


def test_calls_that_tell_nothing_teach_nothing():
    follower = Follower([1.0, 1.2])
    expected = np.array([1.0, 2.0])
    follower.heard(Call(0, 1, alone=True), Made(np.array([1, 0]), 1.0, expected, emitted=1.0))
    follower.heard(Call(0, 16, alone=False), Made(np.array([8, 8]), 1.0, expected, emitted=1.0))
    # A drafted step is compared with a plain one of the same moment alone.
    follower.heard(Call(1, 8, alone=True), Made(np.array([0, 8]), 1.0, expected, emitted=1.0))
    assert np.isinf(follower.costs[1])
    assert follower.next(expected, 100) == Call(0, FIRST_STEPS, alone=True)


def test_a_single_step_is_no_measurement():
    assert Follower([1.0, 1.0]).next(np.array([1.0, 2.0]), 1) == Call(0, 1, alone=False)


def test_a_tree_is_used_when_it_was_measured_twice_and_with_a_margin():
    follower, expected = Follower([1.0, 1.0]), np.array([1.0, 2.0])
    for _ in range(2):
        assert np.isinf(follower.weights[1])
        follower.heard(Call(0, 8, alone=True), Made(np.array([8, 0]), 0.8, expected, emitted=1.0))
        follower.heard(Call(1, 8, alone=True), Made(np.array([0, 8]), 1.2, expected, emitted=1.0))
    np.testing.assert_allclose(follower.weights, [1.0, 1.5 * MARGIN])
