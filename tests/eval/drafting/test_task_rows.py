import dataclasses

import pytest

from eval.drafting.task_contest import Batch, Learner
from eval.drafting.task_rows import below_chains, rows_of
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
            started=2,
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
    assert (found["answers"], found["new_tokens"], found["forwards"]) == (2, 10, 4)
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
