from dataclasses import fields
from itertools import product

import pytest

from jax_smash.tasks.dice import Dice
from jax_smash.tasks.words import _LAST_SYLLABLES, WORDS, belongs, draw_owned, invented_name


def vocabulary(split):
    """Returns all listed words of a split, plurals included."""
    words = WORDS[split]
    listed = {word for field in fields(words) for word in getattr(words, field.name)}
    return listed | {f"{thing}s" for thing in words.objects}


def test_no_word_is_in_both_splits():
    assert not vocabulary("train") & vocabulary("test")


@pytest.mark.parametrize("split", ["train", "test"])
def test_lists_are_large_and_without_repeats(split):
    words = WORDS[split]
    assert len(words.people) >= 60
    for field in fields(words):
        listed = getattr(words, field.name)
        assert len(set(listed)) == len(listed) >= 15
    assert len(set(words.people)) == len(words.people)


@pytest.mark.parametrize("split", ["train", "test"])
def test_words_after_an_article_begin_with_a_consonant(split):
    words = WORDS[split]
    assert not [word for word in words.objects + words.animals + words.adjectives if word[0] in "aeiou"]


@pytest.mark.parametrize("split", ["train", "test"])
def test_things_make_their_plural_with_an_s(split):
    assert not [word for word in WORDS[split].objects if word.endswith(("s", "x", "z", "ch", "sh", "f", "fe"))]


def test_no_last_syllable_of_a_split_ends_in_one_of_the_other():
    for ours, theirs in product(_LAST_SYLLABLES["train"], _LAST_SYLLABLES["test"]):
        assert not ours.endswith(theirs)
        assert not theirs.endswith(ours)


def test_invented_names_are_the_splits_own_many_and_nobodys():
    names = {}
    for split in ("train", "test"):
        dice = Dice(f"names of {split}")
        names[split] = {invented_name(dice, split) for _ in range(2000)}
        assert len(names[split]) > 1200
        assert all(name.isalpha() and name == name.capitalize() for name in names[split])
        assert not names[split] & {word.capitalize() for word in vocabulary("train") | vocabulary("test")}
    assert not names["train"] & names["test"]


def test_an_avoided_name_is_not_made():
    avoided = invented_name(Dice("a"), "train")
    assert invented_name(Dice("a"), "train", (avoided,)) != avoided


def test_each_text_belongs_to_exactly_one_split_and_a_quarter_to_the_tests():
    numbers = [str(number) for number in range(2000)]
    assert all(belongs("train", number) != belongs("test", number) for number in numbers)
    assert 0.2 < sum(belongs("test", number) for number in numbers) / len(numbers) < 0.3


def test_an_owned_draw_is_the_first_that_belongs():
    numbers = iter(range(2000))
    drawn = int(draw_owned("test", lambda: str(next(numbers))))
    assert belongs("test", str(drawn))
    assert not any(belongs("test", str(earlier)) for earlier in range(drawn))
