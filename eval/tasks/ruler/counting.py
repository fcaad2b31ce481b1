"""Counting words: the common ones of a list, and the frequent ones of a coded text."""

import math
from itertools import islice

from eval.tasks.ruler.example import Draft, Example, Units
from eval.tasks.ruler.names import coded_word, distinct, plain_words
from jax_smash.tasks.dice import Dice

COMMON = 10
SHORT = 4096
"""Tokens below which words are repeated less."""

_REPEATS = {False: (30, 3), True: (6, 1)}
_SHOWN_REPEATS, _SHOWN_OTHERS = 3, 10
DOTS = "..."
LEAST_WORDS = 80
"""Coded words from which on each of the first four ranks is more frequent than the next."""


class CommonWordsDraft(Draft):
    """A numbered list in which ten words occur 30 times and others 3 times (6 and 1 below 4096 tokens).

    Source: Hsieh et al. 2024, "RULER", section 3.3, common words.
    Differs: the worked example before it has the same size at all lengths, and words are ours.
    """

    least = 1

    def __init__(self, rng: Dice, length: int) -> None:
        words = plain_words(rng)
        common, others = list(islice(words, COMMON)), list(islice(words, _SHOWN_OTHERS))
        shown = _most_common(common, _shuffled(f"{rng.random()}", common * _SHOWN_REPEATS + others))
        self._before = f"{shown.text} {_numbered(common)}\n\n\n"
        self._common, self._others, self._order = list(islice(words, COMMON)), Units(words), f"{rng.random()}"
        self._often, self._seldom = _REPEATS[length < SHORT]

    def at(self, count: int) -> Example:
        """Returns the example with `count` other words."""
        words = self._common * self._often + self._others.first(count) * self._seldom
        asked = _most_common(self._common, _shuffled(self._order, words))
        return Example(prompt=self._before + asked.prompt, prefix=asked.prefix, references=asked.references)


class FrequentWordsDraft(Draft):
    """A coded text whose word of rank k occurs in proportion to 1/k²; the first rank is dots, ranks 2 to 4 are asked.

    Source: Hsieh et al. 2024, "RULER", section 3.3, frequent words; vocabulary of length // 50, exponent 2.
    Differs: sentences are ours.
    """

    least = LEAST_WORDS

    def __init__(self, rng: Dice, length: int) -> None:
        coded = distinct(lambda: coded_word(rng))
        self._words = [DOTS, *islice(coded, max(4, length // 50 - 1))]
        self._order = f"{rng.random()}"

    def at(self, count: int) -> Example:
        """Returns the example whose words of all ranks are about `count`."""
        zeta = math.pi**2 / 6
        words = [
            word for rank, word in enumerate(self._words, start=1) for _ in range(math.floor(count / rank**2 / zeta))
        ]
        return Example(
            prompt=(
                "The text below is in code. Count how often each coded word occurs; the dots are no word.\n\n"
                f"{' '.join(_shuffled(self._order, words))}\n\n"
                "Question: Which three coded words occur most often in the text?"
            ),
            prefix="\nAnswer: The three coded words that occur most often are:",
            references=tuple(self._words[1:4]),
        )


def _most_common(common: list[str], words: list[str]) -> Example:
    return Example(
        prompt=(
            "Below is a numbered list of words, some of which occur more often than others. Remember those.\n\n"
            f"{_numbered(words)}\n\nQuestion: Which {len(common)} words occur most often in the list?"
        ),
        prefix=f"\nAnswer: The {len(common)} words that occur most often are:",
        references=tuple(common),
    )


def _numbered(words: list[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, start=1))


def _shuffled(seed: str, words: list[str]) -> list[str]:
    return Dice(seed).several(words, len(words))
