"""95% intervals: of a share of right answers, and of a ratio of sums over documents."""

import dataclasses
import statistics
from collections.abc import Sequence

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Interval:
    """Where the figure of many more examples of the same kind would lie.

    Attributes:
      low, high: the bounds, in the unit of the score.
      kind: how they were found: `wilson` or `bootstrap`.
      confidence: share of such intervals that hold the true figure.
    """

    low: float
    high: float
    kind: str
    confidence: float = CONFIDENCE


def wilson(successes: int, n: int) -> Interval:
    """Returns the Wilson score interval of a share; unlike the normal one it is right at 0 and at 1.

    Args:
      successes: from 0 to `n`.
      n: trials, at least 1.

    Raises:
      ValueError: there are no trials, or more successes than trials.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"a share needs 0 <= successes <= n and n >= 1; got {successes} of {n}")
    z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share, shrink = successes / n, 1 + z**2 / n
    middle = (share + z**2 / (2 * n)) / shrink
    half = z / shrink * (share * (1 - share) / n + z**2 / (4 * n**2)) ** 0.5
    # Where no trial or every trial succeeded, the bound is 0 or 1 but for rounding.
    low = 0.0 if successes == 0 else middle - half
    high = 1.0 if successes == n else middle + half
    return Interval(low=low, high=high, kind="wilson")


def ratio_bootstrap(above: Sequence[float], below: Sequence[float], *, seed: int = 0) -> Interval | None:
    """Returns the percentile bootstrap interval of sum(above) / sum(below), documents drawn with their lengths.

    Tokens of one document resemble each other, so documents are drawn again, not tokens.

    Args:
      above, below: an entry a document, such as nats and tokens.
      seed: of the draws.

    Returns:
      None for fewer than two documents: one says nothing about others.
    """
    count = len(above)
    if count < 2:
        return None
    drawn = np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))
    ratios = np.asarray(above, np.float64)[drawn].sum(1) / np.asarray(below, np.float64)[drawn].sum(1)
    low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(low=float(low), high=float(high), kind="bootstrap")
