"""Lessons: training texts that ask many questions, so that much of a text follows from what stands before it.

An example of a task asks once; a model that has yet to learn to look back learns nothing from the rest. Lessons ask the
tasks' questions again and again, of more things. Names and words are made of any letters, because a model copies only
what is written with tokens it has seen copied.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jax_smash.tasks.arithmetic import column_problem
from jax_smash.tasks.coreference import ENDINGS, RELATIONS, Relation
from jax_smash.tasks.dice import Dice
from jax_smash.tasks.key_value import NUMBERS, TOKENS
from jax_smash.tasks.story import NAMED, PERSON, Cast, Story
from jax_smash.tasks.word_problems import word_problem
from jax_smash.tasks.words import WORDS, any_name, draw_owned, invented_name

SPLIT = "train"
_TOLD, _QUESTION = 0.35, 0.25
_ASKED = 2
"""How often one thing is asked for at most: from then on it can be copied from the answer before."""

_OLD_PERSON, _OLD_RELATION = 0.4, 0.5
_MADE_PERSON = 0.4
_ALIKE, _OTHER = 0.6, 0.3
_LONGEST = 13
_NAMED = 0.35
_WORDS = tuple(
    word
    for words in (WORDS[SPLIT],)
    for word in words.tokens + words.objects + words.places + words.animals + words.adjectives + words.foods
)


@dataclass(frozen=True)
class Lesson:
    """A text, and the parts of it, in order, that follow from the text before each of them."""

    text: str
    answers: tuple[str, ...]


class _Names:
    """Names of one lesson, all different. In half of the lessons they are made of few parts: then many begin alike.

    Names that begin alike teach to go on with the name that is meant, and not with any that has the same beginning.
    """

    def __init__(self, rng: Dice) -> None:
        self._rng = rng
        self.used: set[str] = set()
        few = rng.random() < _ALIKE
        self._parts = [any_name(rng) for _ in range(rng.number(2, 5))] if few else []

    def __call__(self) -> str:
        """Returns a name that was not drawn before."""
        return _new(self._draw, self.used)

    def _draw(self) -> str:
        if not self._parts or self._rng.random() < _OTHER:
            return any_name(self._rng)
        first, last = self._rng.pick(self._parts), any_name(self._rng).lower()
        cut = self._rng.number(2, len(first))
        return (first[:cut] + last)[:_LONGEST]


class _Writer:
    """A text that grows up to a length."""

    def __init__(self, length: int, size: Callable[[str], int]) -> None:
        self._length, self._room, self._size = length, length, size
        self.text = ""
        self.answers: list[Any] = []

    @property
    def share(self) -> float:
        """Of the length that is written."""
        return 1 - self._room / self._length

    def add(self, before: str, answer: str = "", after: str = "") -> bool:
        """Adds a part with an answer in it, if it has room; says whether it had."""
        part = f"{before}{answer}{after}"
        needed = max(1, self._size(part))
        if needed > self._room:
            return False
        self._room -= needed
        self.text += part
        self.answers += [answer] if answer else []
        return True


def _co_reference(rng: Dice, writer: _Writer, length: int) -> None:
    """Ties people to places, and comes back to any of the ties at any time or, in half of the lessons, at the end."""
    names = _Names(rng)
    facts: list[Any] = []
    people: list[Any] = []
    story = Story(rng, SPLIT, invent=names)
    most, distraction = rng.number(1, 2 + length // 32), rng.pick((0.1, 0.3, 0.5, 0.7))
    left: list[tuple[Cast, Relation]] = []
    late = rng.pick((0.0, 0.0, 0.4, 0.6, 0.8))
    while True:
        telling, asking = writer.share < late, writer.share >= late > 0
        gap, draw = " " if writer.text else "", rng.random()
        if not facts or (len(facts) < most and not asking and (draw < _TOLD or not left)):
            facts.append(_fact(rng, facts, people, names))
            left += [facts[-1]] * rng.number(1, _ASKED)
            cast, relation = facts[-1]
            added = writer.add(gap + rng.pick(relation.leads).format_map(cast))
        elif telling or not left or (draw < distraction and not asking):
            added = writer.add(gap + (story.sentence((NAMED,)) if rng.random() < _NAMED else story.sentence()))
        else:
            cast, relation = left.pop(rng.number(0, len(left) - 1))
            if rng.random() < _QUESTION:
                added = writer.add(f"\n\nQuestion: {relation.question.format_map(cast)}\nAnswer: ", cast["x"], "\n\n")
            else:
                added = writer.add(f"{gap}{rng.pick(relation.ties).format_map(cast)} ", cast["x"], rng.pick(ENDINGS))
        if not added:
            return


def _fact(rng: Dice, facts: list[tuple[Cast, Relation]], people: list[Cast], names: _Names) -> tuple[Cast, Relation]:
    """Returns a new tie: often of a person who has one already, often the same tie that another person has."""
    asked = {(cast["p"], relation.question) for cast, relation in facts}
    free = [p for p in people if any((p["p"], relation.question) not in asked for relation in RELATIONS)]
    if free and rng.random() < _OLD_PERSON:
        person = rng.pick(free)
    else:
        person = Cast(rng, SPLIT, tuple(p["p"] for p in people))
        person["p"]
        if rng.random() < _MADE_PERSON:
            person["p"] = names()
        people.append(person)
    relations = [relation for relation in RELATIONS if (person["p"], relation.question) not in asked]
    shared = [relation for _, relation in facts if relation in relations]
    relation = rng.pick(shared if shared and rng.random() < _OLD_RELATION else relations)
    cast = Cast(rng, SPLIT)
    cast.update({slot: person[slot] for slot in PERSON})
    cast["x"] = names()
    return cast, relation


def _key_value(rng: Dice, writer: _Writer, length: int) -> None:
    """Tells pairs, then asks for all of them twice, each time in another order."""
    numeric = rng.random() < 0.4
    line, question = rng.pick(NUMBERS if numeric else TOKENS)
    low = 10 ** rng.number(2, 3)
    joint = " " if line[-1] == "." and rng.random() < 0.5 else "\n"
    as_question = rng.random() < 0.5
    used: set[str] = set()
    pairs: dict[str, str] = {}
    for _ in range(rng.number(max(2, length // 40), max(2, length // 20))):
        key = _new(lambda: _word(rng), used)
        # The value of one key may be that of another only where it is a number.
        pairs[key] = (
            draw_owned(SPLIT, lambda: str(rng.number(low, 10 * low - 1))) if numeric else _new(lambda: _word(rng), used)
        )
    writer.add(joint.join(line.format(k=key, v=value) for key, value in pairs.items()) + "\n")
    before, _, after = line.partition("{v}")
    for _ in range(_ASKED):
        for key in rng.several(list(pairs), len(pairs)):
            if as_question:
                added = writer.add(f"\nQuestion: {question.format(k=key)}\nAnswer: ", pairs[key])
            else:
                added = writer.add(f"\n{before.format(k=key)}", pairs[key], after)
            if not added:
                return


def _copying(rng: Dice, writer: _Writer, length: int) -> None:
    """Says a list of words again and again."""
    words = " ".join(_word(rng) for _ in range(rng.number(2, max(2, min(24, length // 6)))))
    added = writer.add(words)
    while added:
        added = writer.add("\n", words)


def _arithmetic(rng: Dice, writer: _Writer, length: int) -> None:
    """Solves problem after problem, in a third of the lessons with sentences between them."""
    story, distraction = Story(rng, SPLIT), rng.pick((0.0, 0.0, 0.3))
    kinds = rng.pick(((column_problem,), (column_problem, word_problem)))
    added = True
    while added:
        if rng.random() < distraction:
            added = writer.add(f"{story.sentence()}\n\n")
        else:
            problem = rng.pick(kinds)(rng, SPLIT)
            added = writer.add(f"Question: {problem.question}\nAnswer: ", problem.solution, ".\n\n")


LESSONS: dict[str, Callable[[Dice, _Writer, int], None]] = {
    "coreference": _co_reference,
    "key_value": _key_value,
    "copying": _copying,
    "arithmetic": _arithmetic,
}
"""The tasks that have lessons."""


def lessons(task: str, *, count: int, seed: int, length: int, size: Callable[[str], int]) -> Iterator[Lesson]:
    """Draws a task's lessons; the same arguments always draw the same ones, and a smaller count the first of them.

    They are for training: they hold no name, no word and no number of the test split.

    Args:
      task: a name in `LESSONS`.
      count: how many; 0 or more.
      seed: any integer.
      length: the most that a lesson's parts measure together, in units of `size`; at least 48.
      size: measures a text.

    Raises:
      ValueError: there are no such lessons, the count is negative, or the length is too small.
    """
    if task not in LESSONS:
        raise ValueError(f"lessons must be of one of {', '.join(LESSONS)}; got {task!r}")
    if count < 0 or length < 48:
        raise ValueError(f"expected a count of 0 or more and a length of at least 48; got {count} and {length}")
    return _draw(task, Dice(f"lessons/{task}/{seed}/{length}"), count, length, size)


def _draw(task: str, rng: Dice, count: int, length: int, size: Callable[[str], int]) -> Iterator[Lesson]:
    drawn = 0
    while drawn < count:
        writer = _Writer(length, size)
        LESSONS[task](rng, writer, length)
        if writer.answers:
            drawn += 1
            yield Lesson(writer.text.rstrip(), tuple(writer.answers))


def _new(draw: Callable[[], str], used: set[str]) -> str:
    """Returns a draw that is not among the used ones, and adds it to them."""
    while (word := draw()) in used:
        pass
    used.add(word)
    return word


def _word(rng: Dice) -> str:
    """Returns a word of the training lists, an invented one with or without a capital, or an invented name."""
    draw = rng.random()
    if draw < 0.4:
        return rng.pick(_WORDS)
    name = invented_name(rng, SPLIT) if draw < 0.5 else any_name(rng)
    return name.lower() if draw < 0.7 else name
