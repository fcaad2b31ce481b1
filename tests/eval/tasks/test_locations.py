"""Locations are told once, early, and asked for last; accuracy and coverage are those of the tokens."""

import dataclasses
import re

import numpy as np
import pytest

from eval.scores.engine import Engine
from eval.tasks.locations import Location, LocationSet, location_set
from jax_smash.checkpoints.tokenizer import load_tokenizer
from jax_smash.loading import ASSETS
from jax_smash.tasks.story import FOOD, THOUGHTS
from jax_smash.tasks.words import WORDS
from tests.eval.markov import markov_model
from tests.tokenizers import byte_tokenizer

TOKENIZER = load_tokenizer(ASSETS / "tiny")
PEOPLE = {*WORDS["test"].people}


def size(text):
    return len(TOKENIZER(text)["input_ids"])


def drawn(count=40, length=160, seed=0):
    return location_set(count=count, length=length, seed=seed, size=size)


def solved(prompt):
    """Returns the capitalised word of the first sentences that no other sentence begins with and no person has."""
    lead = re.split(r"(?<=[.?!]) ", prompt)
    named = re.findall(r"(?<!^)(?<!\. )\b[A-Z][a-z]+\b", " ".join(lead[:2]))
    return next((name for name in named if name not in PEOPLE and len(name) > 3), "")


@pytest.mark.parametrize("length", [128, 400])
def test_a_rule_that_reads_the_lead_finds_every_location_and_one_that_reads_the_end_none(length):
    found = drawn(length=length).locations
    right = [solved(one.prompt) == one.answer for one in found]
    assert sum(right) >= 0.9 * len(right)
    assert not any(one.answer in one.prompt[len(one.prompt) // 3 :] for one in found)


def test_each_location_is_told_once_and_no_two_are_alike():
    found = drawn().locations
    assert all(one.prompt.count(one.answer) == 1 for one in found)
    assert len({one.answer for one in found}) > 35


def test_thoughts_food_and_sums_stand_between():
    def holds(family, prompt):
        fixed = [re.split(r"\{\w+\}", template) for template in family]
        return any(all(piece in prompt for piece in pieces) for pieces in fixed)

    for one in drawn(count=10).locations:
        assert holds(THOUGHTS, one.prompt)
        assert holds(FOOD, one.prompt)
        assert re.search(r"\d+ .*\d+", one.prompt)


def test_sums_are_right():
    for one in drawn(count=20, length=500).locations:
        for n, m, total in re.findall(r"(\d+) \w+s and (\d+) \w+s are (\d+)", one.prompt):
            assert int(n) + int(m) == int(total)


def test_texts_have_their_length_and_are_the_same_each_time():
    found = drawn(length=300)
    sizes = [size(f"{one.prompt} {one.answer}") for one in found.locations]
    assert max(sizes) <= 300
    assert np.median(sizes) > 270
    assert drawn(count=3, length=300).locations == found.locations[:3]
    assert drawn(count=3, length=300, seed=1).locations != found.locations[:3]


def test_a_length_or_count_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match=r"length must be at least \d+ for these texts of locations; got 30"):
        drawn(length=30)
    with pytest.raises(ValueError, match="count must be at least 1; got 0"):
        drawn(count=0)


@pytest.fixture(scope="module")
def engine():
    """Of a model that writes ` Bab` behind an `e`, and an `x` behind anything else."""
    following = [[ord("x")] for _ in range(258)]
    for earlier, later in zip("e Ba", " Bab", strict=True):
        following[ord(earlier)] = [ord(later)]
    model = dataclasses.replace(markov_model(following), tokenizer=byte_tokenizer())
    return Engine(model, batch_size=4, context=96)


def test_coverage_is_the_share_of_likeliest_tokens_and_accuracy_asks_for_all(engine):
    # Each token behind the true ones before it; the space before a location is its first.
    expected = {"Bab": 4 / 4, "Babx": 5 / 5, "Bax": 3 / 4, "Ox": 2 / 3, "OO": 1 / 3}
    locations = tuple(Location(name=answer, prompt="The queen sat on the", answer=answer) for answer in expected)
    accuracy, coverage = LocationSet(locations, length=96, seed=0).measure(engine)
    assert [e["score"] for e in coverage.examples] == pytest.approx(list(expected.values()))
    assert [e["score"] for e in accuracy.examples] == [1, 1, 0, 0, 0]
    assert (accuracy.metric, accuracy.score, accuracy.more["location_tokens"]) == ("accuracy", 2 / 5, 19)
    assert (coverage.metric, coverage.score) == ("coverage", pytest.approx(sum(expected.values()) / 5))
    assert coverage.interval.low < coverage.score < coverage.interval.high


def test_texts_longer_than_the_context_are_refused(engine):
    with pytest.raises(ValueError, match="context must be at least 97, the length of locations; got 96"):
        LocationSet((Location("0", "a", "b"),), length=97, seed=0).measure(engine)
