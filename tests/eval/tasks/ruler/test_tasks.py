"""What the examples of each kind hold."""

import re
from collections import Counter
from itertools import pairwise

import pytest

from eval.tasks.ruler.catalogue import ruler_examples
from eval.tasks.ruler.counting import CommonWordsDraft, FrequentWordsDraft
from eval.tasks.ruler.haystack import FILLER
from eval.tasks.ruler.names import PLAIN, plain_words
from jax_smash.tasks.dice import Dice
from tests.eval.tasks.ruler.solvers import solver


def words(text):
    return len(text.split())


def drawn(task, length=900, count=5):
    return list(ruler_examples(task, count=count, length=length, seed=3, size=words))


def told(example):
    return re.findall(r"The secret \w+ of (\S+) is (\S+)\.", example.prompt)


@pytest.mark.parametrize(
    ("task", "keys", "values", "asked"),
    [
        ("niah_single_1", 1, 1, 1),
        ("niah_single_3", 1, 1, 1),
        ("niah_multikey_1", 4, 4, 1),
        ("niah_multivalue", 1, 4, 4),
        ("niah_multiquery", 4, 4, 4),
    ],
)
def test_haystacks_hold_as_many_keys_and_values_as_they_must(task, keys, values, asked):
    for example in drawn(task):
        pairs = told(example)
        assert len({key for key, _ in pairs}) == keys
        assert len({value for _, value in pairs}) == len(pairs) == values
        assert len(example.references) == asked


def test_values_are_seven_digits_or_uuids():
    uuid = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    assert all(re.fullmatch(r"[1-9]\d{6}", v) for e in drawn("niah_multikey_1") for _, v in told(e))
    assert all(re.fullmatch(uuid, v) for e in drawn("niah_single_3") for _, v in told(e))
    assert all(re.fullmatch(uuid, part) for e in drawn("niah_multikey_3") for pair in told(e) for part in pair)


@pytest.mark.parametrize("task", ["niah_multikey_2", "niah_multikey_3"])
def test_a_haystack_of_needles_holds_nothing_else(task):
    for example in drawn(task):
        text = example.prompt.split("\n\n")[1]
        assert not re.sub(r"The secret \w+ of \S+ is \S+\.", "", text).strip()
        assert len(dict(told(example))) == len(told(example)) > 80


def test_the_filler_repeats_around_the_needle_and_the_chain():
    for task in ("niah_single_1", "vt"):
        for example in drawn(task):
            left = re.sub(r"(The secret|Let)[^.]*\.", "", example.prompt.split("\n\n")[-2])
            assert left.split() == (" ".join(FILLER).split() * 200)[: len(left.split())]


def test_a_chain_has_five_variables_in_order_and_its_example_others():
    for example in drawn("vt"):
        shown, asked = re.findall(r"(?s)The text below.*?Question", example.prompt)
        chain = re.findall(r"Let (\w{5}) be (?:equal to )?(\w{5})", asked)
        assert tuple(later for later, _ in chain) == example.references
        assert [earlier for _, earlier in chain[1:]] == [later for later, _ in chain[:-1]]
        assert not set(example.references) & set(re.findall(r"[A-Z]{5}", shown))
        assert "These 5 variables" in example.prefix


@pytest.mark.parametrize(("length", "often", "seldom"), [(4095, 6, 1), (4096, 30, 3)])
def test_common_words_are_repeated_less_below_4096_tokens(length, often, seldom):
    example = CommonWordsDraft(Dice("x"), length).at(50)
    shown, asked = example.prompt.split("\n\n\n")
    counted = Counter(re.findall(r"\d+\. (\w+)", asked))
    assert {word for word, n in counted.items() if n == often} == set(example.references)
    assert Counter(counted.values()) == {often: 10, seldom: 50}
    numbers = [int(n) for n in re.findall(r"(\d+)\. ", asked)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert not set(example.references) & set(re.findall(r"\w+", shown))
    assert set(Counter(re.findall(r"\d+\. (\w+)", shown)).values()) == {4, 1}  # Three, and once in the answer.


def test_plain_words_do_not_repeat_when_the_list_is_used_up():
    stream = plain_words(Dice("x"))
    many = [next(stream) for _ in range(len(PLAIN) + 300)]
    assert len(set(many)) == len(many)
    assert set(many[: len(PLAIN)]) == set(PLAIN)


@pytest.mark.parametrize("count", [80, 81, 333, 1000])
def test_coded_words_fall_with_the_square_of_their_rank_and_the_first_are_dots(count):
    example = FrequentWordsDraft(Dice("x"), 2000).at(count)
    counted = Counter(example.prompt.split("\n\n")[1].split()).most_common()
    assert counted[0][0] == "..."
    assert tuple(word for word, _ in counted[1:4]) == example.references
    assert [n for _, n in counted[:5]] == [int(count / rank**2 / 1.6449340668) for rank in range(1, 6)]
    assert all(more > less for (_, more), (_, less) in pairwise(counted[:5]))
    assert all(re.fullmatch(r"[a-z]{6}", word) for word, _ in counted[1:])
    assert len(counted) <= 2000 // 50


@pytest.mark.parametrize("task", ["qa_1", "qa_2"])
def test_documents_are_numbered_and_one_alone_is_on_what_is_asked(task):
    for example in drawn(task, count=20):
        parts = re.split(r"Document (\d+):\n", example.prompt.rsplit("Question", 1)[0])
        assert [int(n) for n in parts[1::2]] == list(range(1, len(parts) // 2 + 1))
        without = "".join(part for part in parts if not named(example) & set(re.findall(r"\w+", part)))
        assert solver(task)(example.prompt) == example.references[0]
        with pytest.raises((TypeError, ValueError)):
            solver(task)(f"{without}Question:{example.prompt.rsplit('Question:', 1)[1]}")
        assert sum(bool(named(example) & set(re.findall(r"\w+", part))) for part in parts) == 1


def named(example):
    """Returns the invented name that is asked about."""
    asked = re.findall(r"\b[A-Z][a-z]+", example.prompt.rsplit("Question: ", 1)[1])
    return {asked[-1]}


def test_the_document_that_answers_lies_anywhere():
    places = [e.prompt.index(*named(e)) / len(e.prompt) for e in drawn("qa_1", count=40)]
    assert min(places) < 0.2
    assert max(places) > 0.8
