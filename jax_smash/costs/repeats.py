"""From repeated timings, some of them made while other work had the machine, to the seconds of a cost curve."""

from collections.abc import Sequence

import numpy as np

CAUTION = 0.75
"""Quantile over repeats of what a step of several entries costs, in plain steps: a tree must pay at a price that most
repeats stayed below."""


def settled(times: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Returns the seconds of each size: the median of the first, and the others by what they cost in units of it.

    Each repeat timed all sizes within moments, so its ratios say more than its seconds: a machine that is slow for a
    while is slow for both. Where the ratios differ a higher one counts, so that no tree is chosen because its step was
    cheap by luck.

    Args:
      times: seconds a step, a list a size with an entry a repeat; the first size is a plain step.
    """
    plain = np.asarray(times[0])
    ratios = [np.quantile(np.asarray(t) / plain, CAUTION) for t in times[1:]]
    return tuple(float(np.median(plain) * ratio) for ratio in (1.0, *ratios))


def spread(times: Sequence[Sequence[float]]) -> float:
    """Returns how wide the middle half of what a size costs in plain steps is, as a share of the median; the largest.

    Args:
      times: as of `settled`.
    """
    low, middle, high = np.quantile(np.asarray(times) / np.asarray(times[:1]), [0.25, 0.5, 0.75], axis=1)
    return float(((high - low) / middle).max())
