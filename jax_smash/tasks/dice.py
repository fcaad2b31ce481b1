"""Random draws that are the same in every process and Python version."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Dice(Random):
    """A random source; `pick` and `number` take one draw each and rest on `random()` alone, whose values are fixed."""

    def pick(self, options: Sequence[T]) -> T:
        """Returns one of the options, all equally likely."""
        return options[int(self.random() * len(options))]

    def number(self, low: int, high: int) -> int:
        """Returns a whole number from `low` to `high`, both included."""
        return low + int(self.random() * (high - low + 1))

    def several(self, options: Sequence[T], count: int) -> list[T]:
        """Returns `count` different options in random order."""
        left = list(options)
        return [left.pop(int(self.random() * len(left))) for _ in range(count)]
