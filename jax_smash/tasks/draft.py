"""An example under way: what it must hold, and sentences added until it has its length."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from jax_smash.tasks.example import Example

SPARE = 20
"""A draft is full when at most one part in this many is left of its length; the last sentence seldom fits exactly."""


class Draft(ABC):
    """An example that can be finished at any time and grows by one unit, a sentence or a line, at a time."""

    tries = 6
    """How many units in a row may fail to fit before the draft counts as full."""

    def __init__(self) -> None:
        self.units: list[str] = []

    @abstractmethod
    def propose(self) -> str:
        """Returns a unit that could come next, with the white space that parts it from others; may be discarded."""

    def keep(self, unit: str) -> None:
        """Adds the unit that was proposed last."""
        self.units.append(unit)

    def drop(self) -> None:
        """Takes back the unit that was kept last."""
        self.units.pop()

    @abstractmethod
    def finish(self) -> Example:
        """Returns the example with the units kept so far."""


def full_size(example: Example, size: Callable[[str], int]) -> int:
    """Returns the size of prompt and answer together."""
    return size(f"{example.prompt}{example.separator}{example.answer}")


def fill(draft: Draft, *, length: int, size: Callable[[str], int]) -> Example | None:
    """Adds units to a draft until prompt and answer have the target size.

    Sizes need not add up (a tokenizer may join or begin texts in its own way): sums only steer, the whole is measured.

    Args:
      length: the most that prompt and answer may measure, in units of `size`.
      size: measures a text.

    Returns:
      The example, or None if even without any unit it is too long.
    """
    example = draft.finish()
    used = full_size(example, size)
    if used > length:
        return None
    spare = length // SPARE
    begin = size("")  # What a tokenizer puts before any text is counted once.
    for _ in range(3):
        if length - used <= spare or not _add(draft, length - used, spare, lambda unit: size(unit) - begin):
            break
        example = draft.finish()
        used = full_size(example, size)
        while used > length:
            draft.drop()
            example = draft.finish()
            used = full_size(example, size)
    return example


def _add(draft: Draft, room: int, spare: int, cost: Callable[[str], int]) -> bool:
    """Keeps units as long as they fit, until no more than `spare` is left of the room; says whether any did."""
    added, misses = False, 0
    while room > spare and misses < draft.tries:
        unit = draft.propose()
        needed = max(1, cost(unit))
        if needed > room:
            misses += 1
            continue
        draft.keep(unit)
        room -= needed
        added, misses = True, 0
    return added
