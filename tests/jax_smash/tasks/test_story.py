import re
import string

import pytest

from jax_smash.tasks.dice import Dice
from jax_smash.tasks.story import FAMILIES, PERSON, Cast, Story
from jax_smash.tasks.words import WORDS

TEMPLATES = [template for family in dict.fromkeys(FAMILIES) for template in family]


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_is_filled_and_ends_a_sentence(template):
    sentence = template.format_map(Cast(Dice("templates"), "train"))
    assert "{" not in sentence
    assert sentence.rstrip('"')[-1] in ".!?"


@pytest.mark.parametrize("template", TEMPLATES)
def test_pronouns_follow_their_person(template):
    slots = [slot for _, slot, _, _ in string.Formatter().parse(template) if slot]
    pronouns = [slot for slot in slots if slot in PERSON[1:]]
    assert not pronouns or "p" in slots


def test_a_cast_keeps_its_words_until_it_forgets_them():
    cast = Cast(Dice("cast"), "train")
    thing, person = cast["thing"], cast["p"]
    assert (cast["thing"], cast["p"]) == (thing, person)
    cast.forget(people=False)
    assert cast["p"] == person
    assert "thing" not in cast
    cast.forget(people=True)
    assert not cast


def test_the_two_people_of_a_sentence_differ():
    for seed in range(300):
        cast = Cast(Dice(str(seed)), "test")
        assert cast["q"] != cast["p"]


def test_pronouns_fit_the_name():
    for seed in range(50):
        cast = Cast(Dice(str(seed)), "train")
        girl = cast["p"] in WORDS["train"].girls
        assert (cast["he"], cast["his"], cast["girl"]) == (("she", "her", "girl") if girl else ("he", "his", "boy"))


def test_avoided_names_do_not_occur():
    avoided = WORDS["test"].people[::2]
    story = Story(Dice("avoid"), "test", avoid=avoided)
    said = " ".join(story.sentence() for _ in range(500))
    assert not set(re.findall(r"\w+", said)) & set(avoided)


def test_the_hero_comes_up_now_and_then():
    hero = Cast(Dice("hero"), "train")
    story = Story(Dice("story"), "train", avoid=(hero["p"],), hero=hero)
    share = sum(hero["p"] in story.sentence() for _ in range(1000)) / 1000
    assert 0.02 < share < 0.25
