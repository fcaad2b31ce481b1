"""95% intervals: of a share, of the difference of two shares of the same examples, of a ratio of sums."""

import dataclasses
import statistics
from collections.abc import Sequence

import numpy as np
from scipy.optimize import brentq

CONFIDENCE = 0.95
Z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
RESAMPLES = 2000
SEED = 0
"""Of a bootstrap's draws."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """Where the figure of many more examples of the same kind would lie.

    Attributes:
      low, high: the bounds, in the unit of the score.
      kind: how they were found: `wilson`, `tango` or `bootstrap`.
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
    share, shrink = successes / n, 1 + Z**2 / n
    middle = (share + Z**2 / (2 * n)) / shrink
    half = Z / shrink * (share * (1 - share) / n + Z**2 / (4 * n**2)) ** 0.5
    # Where no trial or every trial succeeded, the bound is 0 or 1 but for rounding.
    low = 0.0 if successes == 0 else middle - half
    high = 1.0 if successes == n else middle + half
    return Interval(low=low, high=high, kind="wilson")


def tango(gained: int, lost: int, n: int) -> Interval:
    """Returns the score interval of a difference of two shares that were found on the same examples.

    It is to pairs what Wilson's is to a single share: it excludes 0 exactly where McNemar's test finds a difference,
    and where no example differs it says how rare a difference must be, which a bootstrap cannot.

    Args:
      gained: examples where the first succeeded and the second did not.
      lost: the other way round.
      n: all examples, at least 1.

    Raises:
      ValueError: there are no examples, or fewer than differ.

    Source: Tango 1998, Equivalence test and confidence interval for the difference in proportions for the paired-sample
    design, section 3.
    """
    if n < 1 or min(gained, lost) < 0 or gained + lost > n:
        raise ValueError(f"pairs need 0 <= gained + lost <= n and n >= 1; got {gained} and {lost} of {n}")

    def beyond(difference: float, z: float) -> float:
        """Returns how far the counts lie above `difference`, less z standard errors under it."""
        b = (2 * n - gained + lost) * difference - gained - lost
        c = -lost * difference * (1 - difference)
        likeliest = (max(b * b - 8 * n * c, 0.0) ** 0.5 - b) / (4 * n)
        variance = n * max(2 * likeliest + difference * (1 - difference), 0.0)
        return gained - lost - n * difference - z * variance**0.5

    if gained == lost == 0:
        # At 0 the variance is 0 too: a root that says nothing.
        bound = Z**2 / (n + Z**2)
        return Interval(low=-bound, high=bound, kind="tango")
    found = (gained - lost) / n
    # Where all examples differ alike, the variance is 0 at that end too: the other root counts.
    inner = (n - Z**2) / (n + Z**2)
    low = -1.0 if found == -1 else inner if found == 1 else brentq(beyond, -1, found, args=(Z,))
    high = 1.0 if found == 1 else -inner if found == -1 else brentq(beyond, found, 1, args=(-Z,))
    return Interval(low=low, high=high, kind="tango")


def interval_of_mean(scores: Sequence[float]) -> Interval | None:
    """Returns the interval of a mean of scores: a bootstrap's, and Wilson's where all are 0 or all are 1.

    Scores that are all alike stay so however they are drawn again: a bootstrap would leave no doubt. Wilson's bound of
    as many shares holds for them as well: of scores from 0 to 1 with one mean, those that are 0 or 1 vary most.

    Args:
      scores: from 0 to 1.

    Returns:
      None for fewer than two, since one says nothing about others.
    """
    if len(scores) > 1 and set(scores) in ({0}, {1}):
        return wilson(round(sum(scores)), len(scores))
    return ratio_bootstrap(scores, [1] * len(scores))


def interval_of_mean_difference(apart: Sequence[float]) -> Interval | None:
    """Returns the interval of a mean of differences of such scores, pair by pair: likewise, Tango's where none differs.

    Args:
      apart: from −1 to 1.

    Returns:
      None for fewer than two.
    """
    if len(apart) > 1 and not any(apart):
        return tango(0, 0, len(apart))
    return ratio_bootstrap(apart, [1] * len(apart))


def ratio_bootstrap(above: Sequence[float], below: Sequence[float], *, seed: int = SEED) -> Interval | None:
    """Returns the percentile bootstrap interval of sum(above) / sum(below), documents drawn with their lengths.

    Tokens of one document resemble each other, so documents are drawn again, not tokens.

    Args:
      above, below: an entry a document, such as nats and tokens.
      seed: of the draws.

    Returns:
      None for fewer than two documents, since one says nothing about others, and where all are of size 0.
    """
    count = len(above)
    if count < 2:
        return None
    random, pairs = np.random.default_rng(seed), np.stack([above, below]).astype(np.float64)
    # One draw at a time: all of them at once would take gigabytes for many documents.
    sums = np.array([pairs[:, random.integers(0, count, count)].sum(1) for _ in range(RESAMPLES)])
    sums = sums[sums[:, 1] > 0]  # A draw of nothing but documents of size 0 has no ratio.
    if not len(sums):
        return None
    ratios = sums[:, 0] / sums[:, 1]
    low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(low=float(low), high=float(high), kind="bootstrap")
