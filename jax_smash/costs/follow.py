"""What steps of each size cost, learned from the calls that decode."""

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Collection, Sequence

import numpy as np
from jaxtyping import Float, Int

Expected = Float[np.ndarray, "rungs"]
"""Tokens that a step and row emits with each tree."""

KEPT = 5
"""Measurements of a tree, of which the median counts."""

PLAIN_KEPT = 3
"""Measurements of plain steps, of which the least counts: other work on the machine only adds to them."""

SURE = 2
"""Measurements before a tree is used."""

WRONG = 3.0
"""Factor by which a cost curve may be wrong."""

EXCUSED = 3
"""Measurements of a tree that do not count because they are `WRONG` times as long as is likely.

XLA prepares some of a CPU's products when they run for the first time. Of a tree whose forwards differ in width, that
may be at any step.
"""

UNSURE = (2.0, 1.5, 1.25, 1.25, 1.25)
"""Factor by which the median of one, two, … measurements may be wrong."""

MARGIN = 1.03
"""What a drafted step is taken to cost beyond what was measured, so that nothing is drafted for nothing."""

LEAST_COST = 0.9
"""Plain steps that a drafted step takes at least; if it seems to take less, the plain steps were disturbed."""

ALLOWED = 0.01
"""Share of all steps that trials of trees that are not in use may cost."""

AGAIN, RARELY = 16, 512
"""Steps until a tree is measured again: at first, and at most. Each time they double."""

TRIAL_S = 0.03
FIRST_STEPS, LEAST_STEPS, MOST_STEPS = 8, 2, 16
"""How long a measurement takes, and how many steps: the first one, and any other."""

CALL_STEPS = 64
"""Steps of a call after which it may be time to measure again."""

FRESH = 2
"""Calls for which a plain step takes what the last one took."""


@dataclasses.dataclass(frozen=True)
class Call:
    """What a call of the loop is to do.

    Attributes:
      rung: of the ladder, to begin with.
      steps: to make.
      alone: keep to this rung: the call is a measurement.
    """

    rung: int
    steps: int
    alone: bool


@dataclasses.dataclass(frozen=True)
class Made:
    """What a call of the loop did.

    Attributes:
      used: steps that were made with each tree.
      seconds: that they took.
      expected: what each tree emits, as of before the call.
      emitted: tokens that a step and row did emit.
    """

    used: Int[np.ndarray, "rungs"]
    seconds: float
    expected: Expected
    emitted: float


class Follower:
    """Chooses among the trees of a ladder by what their steps take here and now.

    All costs are in plain steps, each measured beside plain steps of the same moment, so that a machine that is slow
    for a while changes none. A tree is measured twice before it is used, and ever more rarely from then on. One that
    pays by the cost curve is tried at once; one that pays only if the curve is wrong, when so many steps were made that
    the trial hardly counts. Smaller trees are tried first: a larger one costs as much at least. What relatives have
    measured sets the curve right before anything else was measured, so that a wrong curve is paid for once.

    Attributes:
      clock: returns seconds.
    """

    def __init__(
        self,
        seconds: Sequence[float],
        *,
        relatives: "Collection[Follower]" = (),
        clock: Callable[[], float] = time.perf_counter,
    ):
        """Begins with a cost curve.

        Args:
          seconds: of a step with each tree by the curve; the first is plain decoding.
          relatives: the same method's in caches of other sizes, with curves that are as wrong as this one; they may
            come later, and this one may be among them.
          clock: returns seconds.
        """
        self.clock = clock
        self._relatives = relatives
        self._curve = np.asarray(seconds) / seconds[0]
        self._measured: list[collections.deque[float]] = [collections.deque(maxlen=KEPT) for _ in seconds]
        self._times, self._due = [0] * len(seconds), [0] * len(seconds)
        self._plain: collections.deque[float] = collections.deque(maxlen=PLAIN_KEPT)
        self._since_plain, self._compared = FRESH + 1, set[int]()
        self._leader, self._wins = 0, 0
        self._excused = [0] * len(seconds)
        self._steps, self._lost = 0, 0.0

    def anew(self) -> "Follower":
        """Returns one that begins with the same curve and has learned nothing."""
        return Follower(self._curve.tolist(), clock=self.clock)

    def begin(self) -> None:
        """Begins another text. What steps take is the same in all."""

    @property
    def costs(self) -> Float[np.ndarray, "rungs"]:
        """Plain steps that a step with each tree takes; infinite where nothing was measured."""
        # Of two measurements the higher counts, so that no tree is used because it was cheap by luck.
        measured = (float(np.quantile(m, 0.5, method="higher")) if m else math.inf for m in self._measured[1:])
        return np.array([1.0, *measured])

    @property
    def weights(self) -> Float[np.ndarray, "rungs"]:
        """The costs by which trees are chosen inside a call: infinite for those that are not to be used."""
        sure = [len(m) >= SURE for m in self._measured[1:]]
        return np.array([1.0, *np.where(sure, MARGIN * self.costs[1:], np.inf)])

    def next(self, expected: Expected, steps: int) -> Call:
        """Returns what to do next.

        Args:
          expected: what each tree emits.
          steps: to make at most, 1 or more.
        """
        self._lead(expected)
        tried = self._to_try(expected) if steps >= LEAST_STEPS else None
        if tried is None:
            # Soon after a change of mind it may be changed again.
            most = AGAIN if self._leader and self._wins < SURE else CALL_STEPS
            return Call(self._leader if self._wins else 0, min(most, steps), alone=False)
        stale = self._since_plain > FRESH or tried in self._compared
        rung = 0 if stale else tried
        return Call(rung, min(self._enough(rung), steps), alone=True)

    def heard(self, call: Call, made: Made) -> None:
        """Learns from a call.

        Args:
          call: what was to be done.
          made: what was.
        """
        steps, rung, expected = int(made.used.sum()), call.rung, made.expected
        self._steps += steps
        self._since_plain += 1
        if steps < LEAST_STEPS or made.used[rung] < steps:
            return
        if rung == 0:
            self._plain.append(made.seconds / steps)
            self._since_plain, self._compared = 0, set()
        elif call.alone and self._since_plain <= FRESH:
            cost = made.seconds / steps / min(self._plain)
            self._compared.add(rung)
            first_run = cost > WRONG * self._likely(rung) and self._excused[rung] < EXCUSED
            self._excused[rung] += first_run
            if cost < LEAST_COST or first_run:
                self._since_plain = FRESH + 1
                return
            led = rung == self._leader
            self._measured[rung].append(cost)
            self._times[rung] += 1
            self._lost += steps * max(cost - expected[rung], 0.0)
            self._lead(expected)
            self._wins += led and rung == self._leader
            times = self._wins if rung == self._leader else self._times[rung]
            self._due[rung] = self._steps + min(AGAIN * 2**times, RARELY)

    def _lead(self, expected: Expected) -> None:
        """Sets which tree gives most tokens a second, of those that were measured."""
        leader = int(np.argmax(expected / np.array([1.0, *(MARGIN * self.costs[1:])])))
        if leader != self._leader:
            self._leader, self._wins = leader, 0

    def _to_try(self, expected: Expected) -> int | None:
        """Returns the tree to measure now; None for none."""
        leader = self._leader
        value = expected[leader] / (MARGIN * self.costs[leader] if leader else 1.0)
        for rung in range(1, len(self._measured)):
            likely, measured = self._likely(rung), len(self._measured[rung])
            if rung == leader:
                continue
            least = likely / UNSURE[measured - 1] if measured else self._least(rung)
            loss = self._lost + LEAST_STEPS * max(likely - expected[rung], 0.0)
            allowed = self._steps >= self._due[rung] and loss <= ALLOWED * self._steps
            promised = not measured and expected[rung] > value * likely
            if expected[rung] > value * least and (allowed or promised):
                return rung
        # What is in use is measured whatever that costs, which is a few plain steps.
        return leader if leader and (not self._wins or self._steps >= self._due[leader]) else None

    def _enough(self, rung: int) -> int:
        """Returns the steps of a measurement."""
        if not self._plain:
            return FIRST_STEPS
        return min(max(math.ceil(TRIAL_S / (self._likely(rung) * min(self._plain))), LEAST_STEPS), MOST_STEPS)

    def _likely(self, rung: int) -> float:
        """Returns what a tree is likely to cost: as measured, or by the curve, set right by what was measured."""
        if self._measured[rung] or not rung:
            return float(self.costs[rung])
        wrong = self._known_error()
        return float(self._curve[rung] * (np.median(wrong) if wrong else 1.0))

    def _known_error(self) -> list[float]:
        """Returns by what factors the curve was found to be wrong: here, or else by relatives."""
        return self._error() or [factor for other in self._relatives for factor in other._error()]

    def _error(self) -> list[float]:
        return [float(self.costs[r] / self._curve[r]) for r in range(1, len(self._curve)) if self._measured[r]]

    def _least(self, rung: int) -> float:
        """Returns what a tree that was not measured costs at least: no less than a smaller one."""
        smaller = [self.costs[r] for r in range(1, rung) if self._measured[r]]
        return max(1.0, self._likely(rung) / (UNSURE[1] if self._known_error() else WRONG), *smaller)
