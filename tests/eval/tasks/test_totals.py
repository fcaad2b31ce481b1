import dataclasses

import pytest

from eval.scores.intervals import tango, wilson
from eval.scores.smashing import Compression
from eval.tasks.outcome import accuracy
from eval.tasks.totals import all_tasks


def outcome(task, scores, *, metric="accuracy", compression=(0, 0, 0, 0), **more):
    examples = [{"example": f"{task}/{i}", "score": score} for i, score in enumerate(scores)]
    found = accuracy(task, metric, {"length": 128}, examples, **more)
    return dataclasses.replace(found, compression=Compression(*compression))


def test_every_example_counts_alike():
    found = [outcome("a", [1, 1, 1, 0], truncated=1), outcome("b", [0], truncated=2), outcome("a", [0, 1])]
    (total,) = all_tasks(found)
    assert (total.task, total.metric, total.n, total.score) == ("all tasks", "accuracy", 7, 4 / 7)
    assert total.interval == wilson(4, 7)
    assert total.settings == {"tasks": ["a", "b"]}
    assert total.more == {"sets": 3, "truncated": 3}


def test_the_difference_is_of_pairs_over_all_tasks():
    ours, theirs = ([outcome("a", x), outcome("b", y)] for x, y in (([1, 1, 0], [1, 0]), ([1, 0, 0], [1, 1])))
    (own,), (baseline,) = all_tasks(ours), all_tasks(theirs)
    difference = own.compare(own.examples, baseline.examples)
    assert (difference.value, difference.higher, difference.lower) == (0, 1, 1)
    assert difference.interval == tango(1, 1, 5)


def test_slots_are_those_of_all_tasks():
    found = [outcome("a", [1], compression=(10, 30, 10, 20)), outcome("b", [1], compression=(5, 10, 10, 0))]
    (total,) = all_tasks(found)
    assert total.compression == Compression(prompt=15, tokens=40, slots=20, micro_steps=20)
    assert total.compression.figures()["output_compression"] == 2


@pytest.mark.parametrize("metric", ["acc_norm", "varied", "perplexity"])
def test_what_is_not_right_or_wrong_is_left_out_and_one_set_alone_has_no_total(metric):
    one, other = outcome("a", [1, 0]), outcome("b", [1, 1], metric=metric)
    assert all_tasks([one, other]) == []
    (total,) = all_tasks([one, other, outcome("c", [0, 0], metric="acc")])
    assert (total.n, total.score) == (4, 0.25)
