"""An example of any size: a fixed part, and units of haystack, as many as fit the length."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from jax_smash.tasks.dice import Dice

DEPTHS = 40
"""Places of a needle, evenly from the front to the end of the haystack."""

_PROBE = 8
"""Units by which the size of a unit is first measured."""


@dataclasses.dataclass(frozen=True)
class Example:
    """A prompt and what its answer must hold.

    Attributes:
      prompt: haystack and question; as a chat, the user's turn.
      prefix: how the answer begins: what follows it is the model's.
      references: strings that the answer must hold.
      any_reference: one of them is enough.
    """

    prompt: str
    prefix: str
    references: tuple[str, ...]
    any_reference: bool = False

    @property
    def text(self) -> str:
        """Returns all text before what the model writes."""
        return self.prompt + self.prefix

    def score(self, continuation: str) -> float:
        """Returns the share of references in a continuation, case aside; 1 or 0 where any is enough."""
        written = continuation.casefold()
        found = [reference.casefold() in written for reference in self.references]
        return float(any(found)) if self.any_reference else sum(found) / len(found)


class Draft(ABC):
    """An example under way: the same with more or fewer units of haystack.

    Attributes:
      least: units that it must have.
      most: units that there are; None for no end.
    """

    least: int = 0
    most: int | None = None

    @abstractmethod
    def at(self, count: int) -> Example:
        """Returns the example with `count` units, the same each time."""


class Units:
    """The first units of an endless stream, drawn once."""

    def __init__(self, stream: Iterator[str]):
        self._stream, self._drawn = stream, list[str]()

    def first(self, count: int) -> list[str]:
        """Returns the first `count` units."""
        self._drawn += islice(self._stream, max(0, count - len(self._drawn)))
        return self._drawn[:count]


def inserted(units: Sequence[str], needles: Sequence[str], depths: Sequence[float]) -> list[str]:
    """Returns the units with each needle at its depth, from 0 (in front) to 1 (behind); in order where depths are."""
    whole = list(units)
    placed = sorted(enumerate(zip(depths, needles, strict=True)), key=lambda pair: (pair[1][0], pair[0]), reverse=True)
    for _, (depth, needle) in placed:  # From behind, so that earlier places stay.
        whole.insert(round(depth * len(units)), needle)
    return whole


def needle_depths(rng: Dice, count: int) -> list[float]:
    """Returns `count` different ones of the 40 depths, in random order."""
    return [step / (DEPTHS - 1) for step in rng.several(range(DEPTHS), count)]


def fitted(draft: Draft, *, length: int, size: Callable[[Example], int], what: str) -> Example:
    """Returns the example with the most units that fit: one more, and it would be longer than `length`.

    Args:
      draft: the example under way.
      length: the most that `size` may be.
      size: measures an example, in tokens.
      what: names the task in an error.

    Raises:
      ValueError: the example is longer even with the least units, or all units together do not fill the length.
    """
    fits, used = draft.least, size(draft.at(draft.least))
    if used > length:
        raise ValueError(f"length must be at least {used} for this example of {what}; got {length}")
    most = math.inf if draft.most is None else draft.most
    beyond, step = most + 1, _PROBE
    while beyond - fits > 1:
        count = fits + int(min(step, beyond - fits - 1))
        found = size(draft.at(count))
        # Units are of like size, so a line through two measures leads near the last one that fits.
        cost = max(1.0, (found - used) / (count - fits))
        if found <= length:
            fits, used = count, found
        else:
            beyond = count
        step = max(1, int((length - used) / cost))
    if fits == most and used < length:
        raise ValueError(f"length must be at most {used} for {what}: there is no more text; got {length}")
    return draft.at(fits)
