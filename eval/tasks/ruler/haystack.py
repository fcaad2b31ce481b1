"""Haystacks: a filler that repeats, and endless small stories in place of essays."""

from collections.abc import Iterator
from itertools import cycle

from eval.tasks.ruler.names import SPLIT
from jax_smash.tasks.dice import Dice
from jax_smash.tasks.story import Story

FILLER = (
    "The rain falls on the roof.",
    "The road goes over the hill.",
    "Bread is in the oven.",
    "We sit and talk until it is dark.",
    "Tomorrow the sun comes up again.",
)
_PARAGRAPH = 1 / 12


def filler() -> Iterator[str]:
    """Yields the same few sentences again and again."""
    return cycle(FILLER)


def stories(rng: Dice) -> Iterator[str]:
    """Yields sentences of small stories, the last of a paragraph with an empty line behind it."""
    story = Story(rng, SPLIT)
    while True:
        sentence = story.sentence()
        yield f"{sentence}\n\n" if rng.random() < _PARAGRAPH else sentence


def prose(sentences: list[str]) -> str:
    """Returns sentences as one text."""
    return " ".join(sentences).replace("\n\n ", "\n\n").strip()
