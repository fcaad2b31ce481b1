"""T(m): the time of a decode step by the entries that its forward reads."""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

BUSY = 0.15
"""Spread of measurements over which a machine was busy."""


@dataclasses.dataclass(frozen=True)
class CostCurve:
    """Seconds of a decode step by the entries a row that its forward reads: a pending token and the drafted nodes.

    Attributes:
      entries: measured points, rising, the first 1.
      seconds: of a step at each point.
      batch: rows that decode together.
      slots: cache slots a row that each step reads.
      source: where the figures are from, as a user is told it.
      measured: False for an estimate.
      spread: of measurements, how wide the middle half of a size's cost is, as a share of it; the widest.

    Raises:
      ValueError: the points do not rise from 1, or a time is not positive.
    """

    entries: tuple[int, ...]
    seconds: tuple[float, ...]
    batch: int
    slots: int
    source: str
    measured: bool = True
    spread: float = 0.0

    def __post_init__(self) -> None:
        check_entries(self.entries)
        if len(self.seconds) != len(self.entries):
            raise ValueError(f"seconds must be one for each of {len(self.entries)} points; got {len(self.seconds)}")
        if not all(math.isfinite(s) and s > 0 for s in self.seconds):
            raise ValueError(f"seconds must be over 0; got {min(self.seconds)} to {max(self.seconds)}")
        if min(self.batch, self.slots) < 1:
            raise ValueError(f"batch and slots must be at least 1; got {self.batch} and {self.slots}")

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "CostCurve":
        """Returns the curve of `to_json`."""
        return cls(**fields | {name: tuple(fields[name]) for name in ("entries", "seconds")})

    def to_json(self) -> dict[str, Any]:
        """Returns the curve as JSON can hold it."""
        return dataclasses.asdict(self)

    def at(self, entries: int) -> float:
        """Returns the seconds of a step, on the straight line between the points beside it.

        Raises:
          ValueError: the curve does not reach as far.
        """
        if not 1 <= entries <= self.entries[-1]:
            raise ValueError(
                f"a step must read from 1 to {self.entries[-1]} entries, as far as its cost is known; got {entries}"
            )
        i = bisect.bisect_left(self.entries, entries)
        if self.entries[i] == entries:
            return self.seconds[i]
        low, high = self.entries[i - 1], self.entries[i]
        share = (entries - low) / (high - low)
        return (1 - share) * self.seconds[i - 1] + share * self.seconds[i]

    @property
    def busy(self) -> bool:
        """Whether the machine had too much other work for the figures to be trusted."""
        return self.spread > BUSY

    def relative(self) -> tuple[float, ...]:
        """Returns T(m) / T(1) at each point."""
        return tuple(s / self.seconds[0] for s in self.seconds)


def check_entries(entries: Sequence[int]) -> None:
    """Checks the points of a curve.

    Raises:
      ValueError: they do not rise from 1.
    """
    rising = all(a < b for a, b in itertools.pairwise(entries))
    if not entries or entries[0] != 1 or not rising:
        raise ValueError(f"entries must rise from 1; got {', '.join(map(str, entries)) or 'none'}")
