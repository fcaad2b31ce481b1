"""Variable tracking: a chain of assignments in a haystack; all variables of one value are asked for."""

from itertools import pairwise

from eval.tasks.ruler.example import Draft, Example, Units, inserted
from eval.tasks.ruler.haystack import filler, prose
from eval.tasks.ruler.names import distinct, variable
from jax_smash.tasks.dice import Dice

HOPS = 4
_SHOWN = 15
"""Sentences of haystack of the worked example."""


class TrackingDraft(Draft):
    """A chain of five variables among filler sentences, behind a worked example of the same kind.

    Source: Hsieh et al. 2024, "RULER", section 3.2, with one chain of four hops.
    Differs: sentences are ours.
    """

    def __init__(self, rng: Dice, length: int) -> None:
        names = distinct(lambda: variable(rng))
        values = distinct(lambda: str(rng.number(10_000, 99_999)))
        self._filler = Units(filler())
        shown = _asked([next(names) for _ in range(HOPS + 1)], next(values), _depths(rng), self._filler.first(_SHOWN))
        self._before = f"{shown.text} {', '.join(shown.references)}\n\n\n"
        self._names, self._value, self._depths = [next(names) for _ in range(HOPS + 1)], next(values), _depths(rng)

    def at(self, count: int) -> Example:
        """Returns the example with `count` sentences of haystack."""
        asked = _asked(self._names, self._value, self._depths, self._filler.first(count))
        return Example(prompt=self._before + asked.prompt, prefix=asked.prefix, references=asked.references)


def _depths(rng: Dice) -> list[float]:
    return sorted(rng.random() for _ in range(HOPS + 1))


def _asked(names: list[str], value: str, depths: list[float], units: list[str]) -> Example:
    chain = [f"Let {names[0]} be {value}."]
    chain += [f"Let {later} be equal to {earlier}." for earlier, later in pairwise(names)]
    return Example(
        prompt=(
            "The text below gives values to variables. Remember which variable has which value.\n\n"
            f"{prose(inserted(units, chain, depths))}\n\nQuestion: Which variables have the value {value}?"
        ),
        prefix=f"\nAnswer: These {len(names)} variables have the value {value}:",
        references=tuple(names),
    )
