import itertools

import pytest

from eval.timing.contest import rows, take_turns
from eval.timing.measure import Sample


class Clockwork:
    """A contender whose every run takes the time it is told to."""

    def __init__(self, name, *, decode_s, tokens=((1, 2, 3),), forwards=2, is_peer=False):
        self.name, self.is_peer = name, is_peer
        self.decode_s, self.tokens, self.forwards = itertools.cycle(decode_s), tokens, forwards
        self.seen = []

    def warm_up(self, batches):
        pass

    def run(self, prompts):
        self.seen.append(prompts)
        return Sample(
            tokens=[list(row) for row in self.tokens],
            started=len(self.tokens),
            first_token_s=0.25,
            decode_s=next(self.decode_s),
            steps=self.forwards,
            forwards=self.forwards * len(self.tokens),
        )

    def facts(self):
        return {} if self.is_peer else {"bytes_per_step": 3_000_000}


def held(*contenders, batches=1, repeats=1):
    prompts = [[[i]] for i in range(batches)]
    runs = take_turns(contenders, prompts, repeats=repeats, settle_seconds=0)
    found = rows(contenders, runs, batch_size=1, bytes_per_second=1e9)
    return {row["method"]: row for row in found}


def test_a_row_by_hand():
    # Three tokens, the first of which is the prefill's: two decoded in two steps and half a second.
    row = held(Clockwork("ar", decode_s=[0.5]))["ar"]
    assert row["tokens_per_second"] == 4
    assert row["ms_per_step"] == 250
    assert row["mean_accepted_tokens"] == 1
    assert row["time_to_first_token_ms"] == 250
    assert row["speedup"] == 1
    assert row["ours_over_peer"] is None
    # 3 MB in 250 ms are 12 MB/s of 1,000.
    assert row["roofline_fraction"] == pytest.approx(0.012)


def test_a_method_that_accepts_two_tokens_a_step_takes_half_the_steps():
    found = held(Clockwork("ar", decode_s=[0.5]), Clockwork("drafting", decode_s=[0.4], forwards=1))
    assert found["drafting"]["mean_accepted_tokens"] == 2
    assert found["drafting"]["ms_per_step"] == pytest.approx(400)
    assert found["drafting"]["speedup"] == pytest.approx(1.25)


def test_a_repeat_in_which_the_machine_was_slow_moves_no_median():
    slow_once = [0.5, 5.0, 0.5]
    found = held(Clockwork("ar", decode_s=slow_once), Clockwork("fast", decode_s=[0.25, 2.5, 0.25]), repeats=3)
    assert found["ar"]["tokens_per_second"] == 4
    assert found["ar"]["tokens_per_second_by_repeat"] == [4, 0.4, 4]
    assert found["fast"]["speedup"] == 2


def test_speed_is_of_all_batches_together():
    row = held(Clockwork("ar", decode_s=[0.1, 0.3]), batches=2)["ar"]
    assert row["tokens_per_second"] == pytest.approx(4 / 0.4)


def test_contenders_take_turns_on_every_batch():
    order = []

    class Noting(Clockwork):
        def run(self, prompts):
            order.append((self.name, prompts[0][0]))
            return super().run(prompts)

    held(Noting("ar", decode_s=[1]), Noting("b", decode_s=[1]), batches=2, repeats=2)
    assert order == [("ar", 0), ("b", 0), ("ar", 1), ("b", 1)] * 2


def test_a_peer_stands_against_ours_and_its_differing_prompts_are_counted():
    ours = Clockwork("ar", decode_s=[0.5], tokens=((1, 2, 3), (4, 5, 6)))
    peer = Clockwork("peer", decode_s=[1.5], tokens=((1, 2, 3), (4, 5, 7)), is_peer=True)
    found = held(ours, peer)
    assert found["peer"]["ours_over_peer"] == found["ar"]["ours_over_peer"] == 3
    assert found["peer"]["speedup"] == pytest.approx(1 / 3)
    assert (found["peer"]["prompts_compared"], found["peer"]["prompts_differing"]) == (2, 1)
    assert found["peer"]["bytes_per_step"] == 3_000_000
