"""Documents as windows that a model reads at once, and windows as batches of few shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from jax_smash.shapes import bucket

LEAST_WIDTH = 32
"""Columns of a batch at least."""


class Window(NamedTuple):
    """Part of a shard that is read at once.

    Attributes:
      start, end: what is read, in tokens of the shard.
      own: from here on the window's results count; what stands before was the end of the window before.
    """

    start: int
    own: int
    end: int


class WindowBatch(NamedTuple):
    """Windows that are read together, in rows of a shape that other batches share: some rows may stay empty."""

    windows: list[Window]
    rows: int
    width: int


def windows_of(begin: int, end: int, length: int) -> Iterator[Window]:
    """Yields the windows of a document that lies from `begin` to `end`; each token is some window's own, once.

    Args:
      begin, end: in tokens of the shard.
      length: tokens of a window at most, at least 4. A quarter of each but the first is there to be read only.
    """
    yield Window(begin, begin, min(end, begin + length))
    own = begin + length
    while own < end:
        start = own - length // 4
        yield Window(start, own, min(end, start + length))
        own = start + length


def document_chunks(ends: Int64[np.ndarray, "d"], tokens: int) -> list[tuple[int, int]]:
    """Returns ranges of documents of about so many tokens each, one document at least."""
    starts = np.concatenate([[0], ends[:-1]])
    ranges, first = [], 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, starts[first] + tokens, side="right")))
        ranges.append((first, last))
        first = last
    return ranges


def batches_of(windows: Sequence[Window], length: int, batch_tokens: int) -> Iterator[WindowBatch]:
    """Yields the windows in batches, those of like lengths together, the order and the shapes the same each time.

    Args:
      windows: of any lengths up to `length`.
      length: columns of a batch at most.
      batch_tokens: rows times columns of a batch, about.
    """
    by_width: dict[int, list[Window]] = {}
    for window in windows:
        width = min(bucket(window.end - window.start, least=LEAST_WIDTH), length)
        by_width.setdefault(width, []).append(window)
    for width, group in sorted(by_width.items()):
        rows = max(1, batch_tokens // width)
        for i in range(0, len(group), rows):
            yield WindowBatch(group[i : i + rows], rows, width)
