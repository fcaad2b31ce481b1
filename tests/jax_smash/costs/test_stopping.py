"""Whether drafts that stop pay, learned from simulated texts."""

import numpy as np
import pytest

from jax_smash.costs.follow import Made
from jax_smash.costs.stopping import StoppingFollower

FIRST_RUN = 6.0
"""Times as long as later ones that the first steps with drafts take."""


class Machine:
    """Makes the steps of texts, of which each has its own gain by drafts and its own duration of a step with them."""

    def __init__(self, seconds=0.02, noise=0.0):
        self.seconds, self.rng, self.noise = seconds, np.random.default_rng(0), noise
        self.drafted = False

    def text(self, follower, gain, cost, steps=400):
        """Returns the speed that is reached over a text, in that of plain decoding, and the steps with drafts."""
        follower.begin()
        tokens = taken = drafts = 0.0
        while steps > 0:
            call = follower.next(np.array([1.0, 1.6]), steps)
            used = np.zeros(2, int)
            used[call.rung] = call.steps
            emitted, seconds = (gain * cost, cost) if call.rung else (1.0, 1.0)
            emitted += self.noise * self.rng.normal() * call.rung
            first, self.drafted = call.rung and not self.drafted, self.drafted or bool(call.rung)
            took = call.steps * seconds * self.seconds * (FIRST_RUN if first else 1.0)
            follower.heard(call, Made(used, took, np.array([1.0, 1.6]), emitted))
            tokens, taken, steps = tokens + emitted * call.steps, taken + took / self.seconds, steps - call.steps
            drafts += call.rung * call.steps
        return tokens / taken, drafts


@pytest.mark.parametrize("estimate", [0.7, 1.1, 3.0])
def test_each_text_is_decoded_as_is_faster_there_whatever_the_estimate(estimate):
    follower, machine = StoppingFollower(estimate), Machine()
    for gain, cost in 3 * [(1.6, 2.2), (0.7, 1.4), (1.4, 1.9), (0.5, 1.2), (1.2, 1.5)]:
        machine.text(follower, gain, cost)  # The first texts pay for what is not known yet.
    for gain, cost in [(1.6, 2.2), (0.7, 1.4), (1.4, 1.9), (0.5, 1.2), (1.2, 1.5), (0.9, 1.3)]:
        reached, _ = machine.text(follower, gain, cost)
        assert reached > 0.97 * max(gain, 1.0)


def test_a_step_that_is_dear_because_much_is_drafted_is_no_reason_to_stop():
    follower, machine = StoppingFollower(1.05), Machine()
    machine.text(follower, 1.0, 1.3)
    reached, drafts = machine.text(follower, 1.5, 2.6)
    assert reached > 1.4
    assert drafts > 350


def test_first_runs_do_not_count():
    follower, machine = StoppingFollower(1.05), Machine()
    assert machine.text(follower, 1.3, 1.6, steps=60)[1] > 40


def test_where_drafts_never_pay_they_become_rare():
    follower, machine = StoppingFollower(1.1), Machine()
    for _ in range(5):
        machine.text(follower, 0.4, 5.0)
    reached, drafts = machine.text(follower, 0.4, 5.0, steps=2_000)
    assert reached > 0.97
    assert drafts


def test_a_text_whose_drafts_begin_to_pay_is_found():
    follower, machine = StoppingFollower(1.05), Machine(noise=0.1)
    machine.text(follower, 0.7, 1.4)
    follower.begin = lambda: None  # The same text goes on.
    assert machine.text(follower, 1.5, 2.0, steps=2_000)[0] > 1.3


def test_caches_of_other_sizes_begin_with_what_is_known():
    relatives = []
    followers = [StoppingFollower(1.1, relatives=relatives) for _ in range(2)]
    relatives += followers
    machine = Machine()
    for _ in range(3):
        machine.text(followers[0], 0.5, 2.0, steps=1_000)
    followers[1].begin()
    assert followers[1].usual == followers[0].usual < 1
    assert followers[1].anew().usual == 1.1


def test_a_call_without_steps_says_nothing():
    follower = StoppingFollower(1.1)
    call = follower.next(np.array([1.0, 1.6]), 8)
    follower.heard(call, Made(np.array([0, 0]), 0.0, np.array([1.0, 1.6]), 0.0))
    assert follower.usual == 1.1
    assert follower.costs.tolist() == [1.0, np.inf]
