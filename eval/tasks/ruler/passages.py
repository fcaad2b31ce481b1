"""Questions on one of many numbered documents, or on two: drawn by rule, or read from a file."""

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from eval.tasks.ruler.example import Draft, Example, Units, inserted
from eval.tasks.ruler.names import SPLIT, distinct
from jax_smash.tasks.dice import Dice
from jax_smash.tasks.words import WORDS, invented_name

_JOBS = ["gardener", "painter", "teacher", "doctor", "sculptor", "composer", "printer", "builder", "weaver", "writer"]
_COLOURS = ["black", "purple", "golden", "silver", "copper", "cream", "crimson", "violet"]
_MONTHS = [
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
]


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question and the documents that answer it.

    Attributes:
      question: a sentence.
      answers: any one is right.
      documents: those that together answer it, at least one.
      beside: others that came with it.
    """

    question: str
    answers: tuple[str, ...]
    documents: tuple[str, ...]
    beside: tuple[str, ...] = ()


class DocumentsDraft(Draft):
    """The documents that answer a question, at random places among others that do not.

    Source: Hsieh et al. 2024, "RULER", section 3.4.
    Differs: without a file, documents and questions are drawn by rule: small articles on made-up towns, people, ships
    and poems.
    """

    def __init__(self, asked: Asked, others: Iterator[str], depths: Sequence[float], most: int | None = None) -> None:
        self._asked, self._others, self._depths, self.most = asked, Units(others), depths, most

    def at(self, count: int) -> Example:
        """Returns the example with `count` documents beside those that answer."""
        whole = inserted(self._others.first(count), self._asked.documents, self._depths)
        documents = "\n\n".join(f"Document {number}:\n{text}" for number, text in enumerate(whole, start=1))
        return Example(
            prompt=(
                "Answer a question from the documents below. Write the answer alone and nothing else.\n\n"
                f"{documents}\n\nQuestion: {self._asked.question}"
            ),
            prefix="\nAnswer:",
            references=self._asked.answers,
            any_reference=True,
        )


def drawn_questions(rng: Dice, *, hops: int) -> DocumentsDraft:
    """Returns a question on one article, or for two hops on the town of a person's birth; no other tells the answer.

    Args:
      rng: of the draw.
      hops: documents that the answer takes, 1 or 2.
    """
    names = distinct(lambda: invented_name(rng, SPLIT))
    if hops == 1:
        article = rng.pick(KINDS)(rng, names)
        question, answer = rng.pick(article.questions)
        asked = Asked(question, (answer,), (article.text,))
    else:
        town = _town(rng, names)
        person = _person(rng, names, town.name)
        question = f"On which river lies the town where {person.name} was born?"
        asked = Asked(question, (town.questions[0][1],), (person.text, town.text))
    others = (kind(rng, names).text for kind in cycle(rng.several(KINDS, len(KINDS))))
    return DocumentsDraft(asked, others, [rng.random() for _ in range(hops)])


def chosen_questions(questions: Sequence[Asked], rng: Dice, place: int) -> DocumentsDraft:
    """Returns a question of a file among documents of its other questions, in random order.

    Args:
      questions: of the file.
      rng: of the draw.
      place: of the question in the file.
    """
    asked = questions[place]
    others = dict.fromkeys(text for question in questions for text in (*question.documents, *question.beside))
    left = [text for text in others if text not in asked.documents]
    depths = [rng.random() for _ in asked.documents]
    return DocumentsDraft(asked, iter(rng.several(left, len(left))), depths, most=len(left))


@dataclasses.dataclass(frozen=True)
class _Article:
    """A made-up thing, what is told of it, and questions that this answers, with their answers."""

    name: str
    text: str
    questions: tuple[tuple[str, str], ...]


def _town(rng: Dice, names: Iterator[str]) -> _Article:
    words = WORDS[SPLIT]
    name, river, family = islice(names, 3)
    founder, year, month = f"{rng.pick(words.people)} {family}", _year(rng), rng.pick(_MONTHS)
    return _Article(
        name,
        f"{name} is a small town on the river {river}. It was founded by {founder} in the year {year}. Its people make "
        f"{rng.pick(words.objects)}s. The gate of the town is {rng.pick(_COLOURS)}, and each {month} there is a "
        "market.",
        (
            (f"On which river does the town of {name} lie?", river),
            (f"Who founded the town of {name}?", founder),
            (f"In which year was the town of {name} founded?", year),
            (f"In which month is the market of {name}?", month),
        ),
    )


def _person(rng: Dice, names: Iterator[str], town: str = "") -> _Article:
    words = WORDS[SPLIT]
    name, town = f"{rng.pick(words.people)} {next(names)}", town or next(names)
    job, year, animal = rng.pick(_JOBS), _year(rng), rng.pick(words.animals)
    return _Article(
        name,
        f"{name} was a {job} who was born in {town} in the year {year}. {name} kept a {animal} and was known for "
        f"{rng.pick(words.foods)}.",
        (
            (f"Where was {name} born?", town),
            (f"What was the profession of {name}?", job),
            (f"In which year was {name} born?", year),
            (f"Which animal did {name} keep?", animal),
        ),
    )


def _ship(rng: Dice, names: Iterator[str]) -> _Article:
    words = WORDS[SPLIT]
    name, harbour, family = islice(names, 3)
    captain, year, cargo = f"{rng.pick(words.people)} {family}", _year(rng), rng.pick(words.foods)
    return _Article(
        name,
        f"The {name} was a sailing ship with {rng.pick(_COLOURS)} sails, built in the year {year}. Under captain "
        f"{captain} it carried {cargo} over the sea. In a storm it was lost near {harbour}.",
        (
            (f"In which year was the ship {name} built?", year),
            (f"Who was the captain of the ship {name}?", captain),
            (f"What did the ship {name} carry?", cargo),
            (f"Near which place was the ship {name} lost?", harbour),
        ),
    )


def _book(rng: Dice, names: Iterator[str]) -> _Article:
    words = WORDS[SPLIT]
    name, family = islice(names, 2)
    author, year, month = f"{rng.pick(words.people)} {family}", _year(rng), rng.pick(_MONTHS)
    return _Article(
        name,
        f"The Song of {name} is a long poem that {author} wrote in the year {year}. It tells of a {rng.pick(_JOBS)} "
        f"and a {rng.pick(words.animals)} who cross a forest. It is sung in {month}.",
        (
            (f"Who wrote The Song of {name}?", author),
            (f"In which year was The Song of {name} written?", year),
            (f"In which month is The Song of {name} sung?", month),
        ),
    )


KINDS = (_town, _person, _ship, _book)
"""What articles are about."""


def _year(rng: Dice) -> str:
    return str(rng.number(1100, 1899))
