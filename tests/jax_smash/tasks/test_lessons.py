import re
from statistics import mean

import pytest

from jax_smash.tasks.dice import Dice
from jax_smash.tasks.lessons import LESSONS, lessons
from jax_smash.tasks.words import WORDS, any_name

COUNT = 60


def word_count(text):
    return len(text.split())


@pytest.fixture(scope="module", params=LESSONS)
def drawn(request):
    return list(lessons(request.param, count=COUNT, seed=2, length=120, size=word_count))


def places(lesson):
    """Returns where each answer begins: the last at its last place, and so on backwards."""
    found, end = [], len(lesson.text)
    for answer in reversed(lesson.answers):
        end = lesson.text.rindex(answer, 0, end)
        found.append(end)
    return found[::-1]


@pytest.mark.parametrize("task", [task for task in LESSONS if task != "arithmetic"])
def test_every_answer_was_told_before(task):
    for lesson in lessons(task, count=COUNT, seed=2, length=120, size=word_count):
        for answer, start in zip(lesson.answers, places(lesson), strict=True):
            assert answer in lesson.text[:start]


def test_lessons_ask_often_and_keep_to_their_length(drawn):
    assert len(drawn) == COUNT
    assert all(word_count(lesson.text) <= 120 for lesson in drawn)
    assert mean(word_count(lesson.text) for lesson in drawn) > 70
    assert mean(len(lesson.answers) for lesson in drawn) > 2.5


def test_the_same_arguments_draw_the_same_lessons_and_a_smaller_count_the_first(drawn):
    task = next(t for t in LESSONS if drawn == list(lessons(t, count=COUNT, seed=2, length=120, size=word_count)))
    assert drawn[:5] == list(lessons(task, count=5, seed=2, length=120, size=word_count))
    assert drawn != list(lessons(task, count=COUNT, seed=3, length=120, size=word_count))


def test_no_word_of_the_test_split_is_named(drawn):
    test = {word for name in ("girls", "boys", "tokens") for word in getattr(WORDS["test"], name)}
    # Some words of the lists are words of the templates too.
    test -= {"map", "door", "date"}
    for lesson in drawn:
        assert not test & set(re.findall(r"\w+", lesson.text))


def test_a_place_is_tied_to_one_person_and_one_relation():
    for lesson in lessons("coreference", count=COUNT, seed=5, length=200, size=word_count):
        asked = re.findall(r"Question: (.+)\nAnswer: (\w+)", lesson.text)
        assert len({question for question, _ in asked}) == len({*asked})


def test_two_people_have_the_same_relation_in_many_lessons():
    texts = [lesson.text for lesson in lessons("coreference", count=COUNT, seed=6, length=200, size=word_count)]
    born = [len({*re.findall(r"(\w+) never forgot the town|(\w+) went back to the town", text)}) for text in texts]
    assert sum(number > 1 for number in born) > 2


def test_the_pairs_that_are_asked_for_are_the_pairs_that_are_told():
    for lesson in lessons("key_value", count=COUNT, seed=7, length=100, size=word_count):
        told, _, asked = lesson.text.partition("\n\n")
        assert {*lesson.answers} <= set(re.findall(r"[\w]+", told))
        assert word_count(asked) > word_count(told) / 3


def test_every_calculation_of_a_solution_is_right():
    calculated = 0
    for lesson in lessons("arithmetic", count=COUNT, seed=8, length=120, size=word_count):
        for answer in lesson.answers:
            assert re.search(r"So the answer is \d+$", answer)
            for calculation, result in re.findall(r"(\d+(?: [-+x] \d+)+) = (\d+)", answer):
                assert eval(calculation.replace("x", "*")) == int(result)
                calculated += 1
    assert calculated > 5 * COUNT


def test_any_name_is_made_of_more_than_the_lists_syllables():
    rng = Dice("names")
    names = {any_name(rng) for _ in range(3000)}
    assert len(names) > 2900
    assert len({name[:2] for name in names}) > 150
    assert all(re.fullmatch(r"[A-Z][a-z]{2,}", name) for name in names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "state"}, "lessons must be of one of coreference, key_value, copying, arithmetic; got 'state'"),
        ({"count": -1}, "got -1 and 64"),
        ({"length": 47}, "got 1 and 47"),
    ],
)
def test_lessons_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        lessons(**{"task": "copying", "count": 1, "seed": 0, "length": 64, "size": word_count} | arguments)
