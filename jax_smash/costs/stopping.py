"""Whether a drafter that stops where it is unsure pays, learned from the calls that decode."""

import collections
import time
from collections.abc import Callable, Collection

import numpy as np
from jaxtyping import Float

from jax_smash.costs.follow import EXCUSED, FIRST_STEPS, LEAST_STEPS, PLAIN_KEPT, WRONG, Call, Expected, Made

CHUNK = 8
"""Steps with drafts that are looked at together."""

WORTH = 0.97
"""Gain from which drafts are made: a little below 1, so that noise ends no drafts that neither gain nor lose."""

HOPED = 1.1
"""Gain that a text begins with at most: what earlier ones gained by more says little of the next."""

PRIOR, USUAL = 8.0, 128.0
"""Plain steps that what earlier texts gained counts as: at the beginning of a text, and beside what a chunk gains."""

PAUSE, ALLOWED = 32, 0.02
"""Plain steps at least until drafts that did not pay are tried again, and the share of them that a trial may cost."""

STALE, FEW = 64, 4
"""Steps with drafts after which plain ones are timed again, and steps of that and of a trial.

The first plain steps of all are timed twice.
"""


class StoppingFollower:
    """Chooses between plain decoding and the drafts of a drafter that stops by itself.

    How long a step takes depends on how much the drafter dares to draft, and so does what is kept of it. So neither is
    estimated alone: what counts is the gain, the tokens that are emitted while plain decoding makes a step, over the
    same steps of the same text. A text begins with what earlier ones gained.

    Attributes:
      clock: returns seconds.
    """

    def __init__(
        self,
        gain: float,
        *,
        relatives: "Collection[StoppingFollower]" = (),
        clock: Callable[[], float] = time.perf_counter,
    ):
        """Begins with an estimate.

        Args:
          gain: of drafts.
          relatives: the same method's in caches of other sizes, which may know better; they may come later, and this
            one may be among them.
          clock: returns seconds.
        """
        self.clock = clock
        self._estimate, self._relatives = gain, relatives
        self._usual: float | None = None
        self._plain: collections.deque[float] = collections.deque(maxlen=PLAIN_KEPT)
        self._since_plain, self._excused, self._cost = 0, 0, np.inf
        self._rest(FEW * (WRONG / gain - 1))
        self.begin()

    def anew(self) -> "StoppingFollower":
        """Returns one that begins with the same estimate and has learned nothing."""
        return StoppingFollower(self._estimate, clock=self.clock)

    def begin(self) -> None:
        """Begins another text."""
        self._text = min(self.usual, HOPED)
        self._tokens = self._taken = 0.0
        self._drafts = self._text >= WORTH

    @property
    def usual(self) -> float:
        """What drafts gain."""
        known = [f._usual for f in (self, *self._relatives) if f._usual is not None]
        return known[0] if known else self._estimate

    @property
    def costs(self) -> Float[np.ndarray, "2"]:
        """Plain steps that a step of each kind took last; infinite where nothing was measured."""
        return np.array([1.0, self._cost])

    @property
    def weights(self) -> Float[np.ndarray, "2"]:
        """The same: a call keeps to its tree, whatever they are."""
        return self.costs

    def next(self, expected: Expected, steps: int) -> Call:
        """Returns what to do next.

        Args:
          expected: what each tree emits.
          steps: to make at most, 1 or more.
        """
        del expected  # What a text gains is measured.
        drafts = self._drafts or self._waited >= self._pause
        if not drafts:
            return Call(0, min(self._pause - self._waited, steps), alone=True)
        if len(self._plain) < 2 or self._since_plain >= STALE:
            return Call(0, min(FEW if self._plain else FIRST_STEPS, steps), alone=True)
        return Call(1, min(CHUNK if self._drafts else FEW, steps), alone=True)

    def heard(self, call: Call, made: Made) -> None:
        """Learns from a call.

        Args:
          call: what was to be done.
          made: what was.
        """
        steps = int(made.used.sum())
        if not steps:
            return
        a_step = made.seconds / steps
        if call.rung == 0:
            if steps >= LEAST_STEPS:
                self._plain.append(a_step)
                self._since_plain = 0
            self._waited += steps
            return
        self._since_plain += steps
        self._cost = a_step / float(np.median(self._plain))
        taken, tokens = steps * self._cost, steps * made.emitted
        if tokens < WORTH * taken and self._excused < EXCUSED:
            # XLA for a CPU prepares products when they first run, and those of other widths later.
            self._excused += 1
            if not self._drafts:
                self._rest(taken - tokens)
            return
        self._usual = (USUAL * self.usual + tokens) / (USUAL + taken)
        self._taken += taken
        self._tokens += tokens
        gain = (PRIOR * self._text + self._tokens) / (PRIOR + self._taken)
        if gain >= WORTH:
            self._drafts = True
        else:
            self._rest(self._taken - self._tokens)
            self._drafts, self._tokens, self._taken = False, 0.0, 0.0

    def _rest(self, lost: float) -> None:
        """Stops drafting, for longer the more plain steps drafts have cost, or may cost, for nothing."""
        self._pause, self._waited = max(PAUSE, int(lost / ALLOWED)), 0
