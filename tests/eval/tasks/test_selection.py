"""Recall of chosen slots, worked by hand, and its controls."""

import numpy as np
import pytest

from eval.tasks.selection import random_slots, recent_slots, selection_recall

SMALL = {"first_layer": 0, "first_position": 0, "sinks": 1}


def row(values):
    """Returns one layer, row, head and query."""
    return np.asarray(values)[None, None, None, None]


PROBABILITIES = row([0.5, 0.05, 0.2, 0.1, 0.12, 0.03, 0.0])
"""A query at position 5: candidates 1 … 5, of which 2, 4 and 3 have most."""
POSITION = np.asarray([5])


def marks(*slots):
    return row([slot in slots for slot in range(7)])


@pytest.mark.parametrize(
    ("slots", "budget", "recall", "kept"),
    [
        ((2, 3, 4), 0.5, 1, 3 / 5),  # Half of five, rounded up: 2, 4, 3.
        ((2, 1, 5), 0.5, 1 / 3, 3 / 5),
        ((0, 6, 2), 0.5, 1 / 3, 1 / 5),  # A sink and a slot behind the query do not count.
        ((), 0.5, 0, 0),
        ((2,), 1, 1, 1 / 5),
        ((4,), 1, 0, 1 / 5),
        ((2, 4), 2, 1, 2 / 5),
        ((1, 2, 3, 4, 5), 100, 1, 1),  # More than there are takes all.
        ((1, 2), 1.0, 2 / 5, 2 / 5),
    ],
)
def test_recall_is_the_share_of_the_top_slots_that_are_chosen(slots, budget, recall, kept):
    found = selection_recall(PROBABILITIES, marks(*slots), POSITION, budget=budget, **SMALL)
    assert found.recall == pytest.approx(np.full((1, 1), recall))
    assert found.kept == pytest.approx(np.full((1, 1), kept))


def test_of_equal_probabilities_the_earlier_slot_ranks_first():
    flat = row([0.25, 0.25, 0.25, 0.25, 0, 0, 0])
    first = selection_recall(flat, marks(1), np.asarray([3]), budget=1, **SMALL)
    later = selection_recall(flat, marks(2), np.asarray([3]), budget=1, **SMALL)
    assert (first.recall.item(), later.recall.item()) == (1, 0)


def drawn(layers=3, rows=2, heads=4, first=250, queries=16):
    rng = np.random.default_rng(0)
    position = np.arange(first, first + queries)
    shape = (layers, rows, heads, queries, first + queries)
    probabilities = rng.dirichlet(np.full(shape[-1], 0.1), shape[:-1])
    return probabilities, rng.random(shape) < 0.25, position


def test_the_first_layer_early_queries_and_sinks_are_left_out():
    probabilities, chosen, position = drawn()
    found = selection_recall(probabilities, chosen, position)
    assert found.recall.shape == (2, 4)
    changed, other = probabilities.copy(), chosen.copy()
    changed[0], other[0] = 0, ~chosen[0]
    changed[:, :, :, :6], other[:, :, :, :6] = 0, True  # Positions 250 … 255.
    changed[..., :4], other[..., :4] = 9, True
    np.testing.assert_array_equal(selection_recall(changed, other, position).recall, found.recall)
    changed[..., 4:8] = 9
    assert (selection_recall(changed, other, position).recall != found.recall).any()


def test_each_head_has_its_own_recall():
    probabilities, chosen, position = drawn()
    chosen[:, :, 2] = True
    recall = selection_recall(probabilities, chosen, position).recall
    assert (recall[:, 2] == 1).all()
    assert (np.delete(recall, 2, axis=1) < 0.5).all()


def test_a_random_choice_holds_as_much_of_the_truth_as_it_keeps_and_an_oracle_all():
    probabilities, chosen, position = drawn()
    control = random_slots(chosen, position, seed=0)
    found = selection_recall(probabilities, control, position)
    assert found.kept == pytest.approx(selection_recall(probabilities, chosen, position).kept)
    assert found.recall.mean() == pytest.approx(found.kept.mean(), abs=0.02)
    oracle = probabilities > np.median(probabilities, axis=-1, keepdims=True)
    assert selection_recall(probabilities, oracle, position).recall.min() > 0.95
    assert selection_recall(probabilities, ~oracle, position).recall.max() < 0.05


def test_recent_slots_are_the_latest_and_as_many():
    recent = recent_slots(marks(0, 1, 2), POSITION, sinks=1)
    np.testing.assert_array_equal(recent, marks(4, 5))
    found = selection_recall(PROBABILITIES, recent, POSITION, budget=2, **SMALL)
    assert found.recall.item() == 1 / 2


def test_the_same_seed_draws_the_same_slots():
    _, chosen, position = drawn()
    same, other = (random_slots(chosen, position, seed=seed) for seed in (1, 2))
    np.testing.assert_array_equal(same, random_slots(chosen, position, seed=1))
    assert (same != other).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chosen": marks()[0]}, r"must both be \[L, B, N, T, S\]"),
        ({"position": np.asarray([5, 6])}, "one for each of 1 queries; got shape"),
        ({"budget": 0}, "budget must be a share above 0 and at most 1.0, or slots from 1 on; got 0"),
        ({"budget": 1.5}, "got 1.5"),
        ({"sinks": 6}, "at or behind the 6 sinks; got position 5"),
        ({"first_layer": 1}, "in a layer from 1 on"),
        ({"first_position": 6}, "at a position from 6 on; got 1 layers and positions up to 5"),
    ],
)
def test_what_cannot_be_counted_is_refused(changes, message):
    given = {"probabilities": PROBABILITIES, "chosen": marks(2), "position": POSITION} | SMALL | changes
    with pytest.raises(ValueError, match=message):
        selection_recall(given.pop("probabilities"), given.pop("chosen"), given.pop("position"), **given)
