import dataclasses
import statistics

import numpy as np
import pytest

from eval.drafting.task_contest import Batch, Learner
from eval.drafting.task_rows import below_chains, rows_of
from eval.scores.intervals import ratio_bootstrap
from eval.timing.measure import Sample

BATCHES = [Batch("qa", [[1], [2]]), Batch("rag", [[3], [4]])]
TOKENS = [[[1, 2, 3, 4, 5], [6, 7, 8, 9, 1]], [[1, 2, 3, 4, 5], [6, 7, 8]]]


@dataclasses.dataclass
class Told(Learner):
    """A contender that is never run."""

    name: str
    method: str
    tree: str | None
    nodes: int = 0

    def facts(self):
        """Returns its nodes."""
        return {"nodes": self.nodes}


def samples(forwards, seconds, tokens=TOKENS):
    return [
        Sample(
            tokens=rows,
            started=len(rows),
            first_token_s=0.5,
            decode_s=s,
            steps=max(n),
            forwards=sum(n),
            forwards_by_row=n,
        )
        for rows, n, s in zip(tokens, forwards, seconds, strict=True)
    ]


PLAIN, TREE, CHAIN = (Told("ar", "ar", None), Told("r t", "r", "t", 3), Told("r c", "r", "c", 3))
RUNS = {
    "ar": [samples([[4, 4], [4, 2]], [2.0, 1.5]), samples([[4, 4], [4, 2]], [4.0, 3.0])],
    "r t": [samples([[2, 2], [3, 2]], [1.0, 1.5]), samples([[2, 2], [3, 2]], [2.0, 3.0])],
    "r c": [samples([[4, 3], [2, 1]], [2.0, 1.0]), samples([[4, 3], [2, 1]], [4.0, 2.0])],
}


@pytest.fixture(scope="module")
def rows():
    found = rows_of([PLAIN, TREE, CHAIN], RUNS, BATCHES, batch_size=2, chains={"r t": "r c"})
    return {(row["method"], row["tree"], row["task"]): row for row in found}


def test_there_is_a_row_a_contender_and_task(rows):
    tasks = ("all", "qa", "rag")
    assert list(rows) == [(c.method, c.tree, task) for c in (PLAIN, TREE, CHAIN) for task in tasks]


def test_mean_accepted_tokens_leave_out_the_prefill_s_token(rows):
    assert rows["ar", None, "all"]["mean_accepted_tokens"] == 1
    found = rows["r", "t", "qa"]
    # Two answers of five tokens each, twice.
    assert (found["answers"], found["new_tokens"], found["forwards"]) == (2, 20, 8)
    assert found["mean_accepted_tokens"] == 2
    assert rows["r", "t", "all"]["mean_accepted_tokens"] == pytest.approx(14 / 9)
    assert found["interval"]["low"] <= 2 <= found["interval"]["high"]


def test_speed_is_against_plain_decoding_of_the_same_batch(rows):
    found = rows["r", "t", "qa"]
    # Eight tokens in one second, then in two; plain decoding took twice as long each time.
    assert found["tokens_per_second_by_repeat"] == [8, 4]
    assert (found["tokens_per_second"], found["speedup"]) == (6, 2)
    assert found["ms_per_step"] == pytest.approx((500 + 1000) / 2)
    assert rows["r", "t", "all"]["speedup"] == pytest.approx(3.5 / 2.5)


def test_a_tree_stands_beside_its_chain_and_one_that_accepts_less_is_told(rows):
    found = rows["r", "t", "qa"]
    assert found["chain_mean_accepted_tokens"] == pytest.approx(8 / 7)
    assert found["over_chain"] == pytest.approx(7 / 4)
    assert found["speed_over_chain"] == 2
    assert "over_chain" not in rows["r", "c", "qa"]
    notes = below_chains(list(rows.values()))
    assert notes == ["r t, batch 2, rag: accepts 0.600 of what the chain of 3 does"]


def test_texts_that_differ_from_plain_decoding_are_counted():
    other = [TOKENS[0], [[1, 2, 3, 4, 5], [6, 7, 9]]]
    runs = RUNS | {"r t": [samples([[2, 2], [3, 2]], [1.0, 1.5], other)] * 2}
    found = rows_of([PLAIN, TREE], runs, BATCHES, batch_size=2, chains={})
    assert [row["differing"] for row in found] == [0, 0, 0, 1, 0, 1]


@pytest.mark.parametrize("repeat", [0, 1])
def test_an_answer_that_differs_in_any_repeat_is_counted_once(repeat):
    other = [TOKENS[0], [[1, 2, 3, 4, 5], [6, 7, 9]]]
    mine = [samples([[2, 2], [3, 2]], [1.0, 1.5]) for _ in range(2)]
    mine[repeat] = samples([[2, 2], [3, 2]], [1.0, 1.5], other)
    found = rows_of([PLAIN, TREE], RUNS | {"r t": mine}, BATCHES, batch_size=2, chains={})
    assert [row["differing"] for row in found if row["method"] == "r"] == [1, 0, 1]


def test_forwards_of_all_repeats_count():
    # An automatic tree makes 4 forwards of the first task at first, then 6; 8 tokens come of them each time.
    mine = [samples([[2, 2], [3, 2]], [1.0, 1.5]), samples([[4, 2], [3, 2]], [2.0, 3.0])]
    found = rows_of([PLAIN, TREE, CHAIN], RUNS | {"r t": mine}, BATCHES, batch_size=2, chains={"r t": "r c"})
    (row,) = (row for row in found if (row["tree"], row["task"]) == ("t", "qa"))
    assert (row["forwards"], row["mean_accepted_tokens"]) == (10, pytest.approx(16 / 10))
    assert row["over_chain"] == pytest.approx((16 / 10) / (8 / 7))
    # Of two answers the draws are the first twice, both, or the second twice: 8 tokens of 6 forwards, or of 4.
    told = {"low": 8 / 6, "high": 2.0}
    assert {end: row["interval"][end] for end in told} == pytest.approx(told)


@pytest.mark.parametrize("repeats", [1, 2, 3, 4])
def test_a_speedup_is_the_ratio_of_sums_of_each_batch_s_median_and_lies_in_its_interval(repeats):
    # Batches take times of their own, as a machine with other work has them.
    rng, count = np.random.default_rng(repeats), 2 * repeats
    tokens = [[[1] * int(n)] for n in rng.integers(2, 40, count)]
    took = {name: rng.lognormal(sigma=0.8, size=(repeats, count)) for name in ("ar", "r t")}
    runs = {name: [samples([[1]] * count, times, tokens) for times in found] for name, found in took.items()}
    given = {"batch_size": 1, "chains": {"r t": "r c"}}
    found = rows_of([PLAIN, TREE], runs | {"r c": runs["ar"]}, [Batch("qa", [[1]])] * count, **given)
    theirs, ours = ([statistics.median(of_batch) for of_batch in took[name].T] for name in ("ar", "r t"))
    row, interval = found[1], found[1]["speedup_interval"]
    assert row["speedup"] == pytest.approx(sum(theirs) / sum(ours))
    assert row["speed_over_chain"] == pytest.approx(row["speedup"])
    assert interval["low"] <= row["speedup"] <= interval["high"]
    drawn = ratio_bootstrap(theirs, ours)
    assert (interval["low"], interval["high"]) == pytest.approx((drawn.low, drawn.high))


def test_a_speedup_is_for_as_many_tokens_as_plain_decoding_has():
    # Half of the text in half of the time is no speed-up.
    half = [[[1, 2, 3], [6, 7, 8]], [[1, 2, 3], [6, 7, 8]]]
    runs = {
        "ar": [samples([[4, 4], [4, 4]], [2.0, 2.0], [TOKENS[0]] * 2)],
        "r t": [samples([[2, 2], [2, 2]], [1.0, 1.0], half)],
    }
    found = rows_of([PLAIN, TREE], runs, BATCHES, batch_size=2, chains={})
    assert [row["speedup"] for row in found if row["method"] == "r"] == pytest.approx([1, 1, 1])
