"""Batches without end, and how several hosts share them: each takes its own rows of every one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np


class Batches(Protocol):
    """Batches without end that know where they stand; a `grain.DatasetIterator` is one."""

    def __next__(self) -> Any:
        """Returns the next batch, a pytree of `[B, …]` arrays."""

    def get_state(self) -> dict[str, Any]:
        """Returns where they stand, as JSON holds it."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to where they stood."""


class Share(NamedTuple):
    """Which rows of a batch a host takes: the one of its number, of so many equal shares."""

    host: int = 0
    hosts: int = 1

    @classmethod
    def of_this_process(cls) -> Share:
        """Returns the share of this process among those of a run."""
        return cls(jax.process_index(), jax.process_count())

    def check(self, rows: int) -> None:
        """Checks that a batch's rows divide among the hosts.

        Raises:
          ValueError: they do not.
        """
        if rows % self.hosts:
            raise ValueError(f"a batch must divide among {self.hosts} hosts; got {rows} rows")

    def rows_of(self, batch: Any) -> Any:
        """Returns a batch's rows that are this host's."""

        def own(x: np.ndarray) -> np.ndarray:
            each = len(x) // self.hosts
            return x[self.host * each : (self.host + 1) * each]

        return batch if self.hosts == 1 else jax.tree.map(own, batch)


WHOLE = Share()
"""The only host's."""


@dataclasses.dataclass
class SharedBatches:
    """A host's rows of batches without end.

    Every host draws the rows of all, so that where the batches stand is the same on each of them: a run is taken up
    again by any number of hosts. Drawing rows is cheap beside training on them.

    Attributes:
      batches: whole ones, the same on all hosts.
      share: the rows that this host takes.
      count: counts the tokens of a whole batch.
      tokens: of all the batches so far, those of all hosts.
    """

    batches: Batches
    share: Share
    count: Callable[[Any], int]
    tokens: int = 0

    def __iter__(self) -> Iterator[Any]:
        """Returns itself."""
        return self

    def __next__(self) -> Any:
        """Returns this host's rows of the next batch."""
        batch = next(self.batches)
        self.tokens += self.count(batch)
        return self.share.rows_of(batch)

    def get_state(self) -> dict[str, Any]:
        """Returns where the batches stand, the same on every host, and how many tokens they have had."""
        return {"batches": self.batches.get_state(), "tokens": self.tokens}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to where the batches of any number of hosts stood."""
        self.batches.set_state(state["batches"])
        self.tokens = state["tokens"]
