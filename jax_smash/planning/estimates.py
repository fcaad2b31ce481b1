"""What a plan comes to: the bytes of a device, and the speed of a batch."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device.

    Attributes:
      weights, drafter: of the target and of what drafts.
      cache, rows, shared: keys and values of the target, what else rows have, what they share.
      temporaries: of a forward, about.
      held: by the device.
    """

    weights: int
    drafter: int
    cache: int
    rows: int
    shared: int
    temporaries: int
    held: int

    @property
    def arguments(self) -> int:
        """Bytes that are there when a step begins."""
        return self.weights + self.drafter + self.cache + self.rows + self.shared

    @property
    def total(self) -> int:
        """All bytes."""
        return self.arguments + self.temporaries

    @property
    def fits(self) -> bool:
        """Whether the device has as many."""
        return self.total <= self.held


@dataclasses.dataclass(frozen=True)
class Speed:
    """What decoding takes with a number of rows.

    Attributes:
      batch: rows.
      step: seconds of a step.
      tokens: that a step emits a row.
      memory: of a device.
      tree: that is drafted, by name; None where none is.
    """

    batch: int
    step: float
    tokens: float
    memory: Memory
    tree: str | None = None

    @property
    def latency(self) -> float:
        """Seconds a token of a row."""
        return self.step / self.tokens

    @property
    def throughput(self) -> float:
        """Tokens a second of all rows."""
        return self.batch / self.latency
