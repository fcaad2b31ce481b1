"""Calls of the decoding loop where trees are sized: which tree a call begins with, and what its time tells."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from jax_smash.costs import Follower, StoppingFollower
from jax_smash.costs.follow import LEAST_STEPS, Call, Expected, Made
from jax_smash.decode.budget import ROUND_STEPS
from jax_smash.decode.state import DecodeState
from jax_smash.pytree import replace
from jax_smash.sharding import put

Loop = Callable[[DecodeState, int, Callable[[], float]], tuple[DecodeState, float]]
"""Takes a state, the steps to make and a clock; returns the state and the seconds that the steps took."""


class _Begun:
    """A follower's call of which steps are left, and what those that were made did."""

    def __init__(self, call: Call, expected: Expected):
        """Begins one; `expected` is what each tree emits."""
        self.call, self.left = call, call.steps
        self._expected, self._used, self._seconds = expected, np.zeros(len(expected), np.int32), 0.0
        self._tokens, self._forwards = 0.0, 0.0

    def add(self, seconds: float, used: Int[np.ndarray, "rungs"], tokens: float, forwards: float) -> None:
        """Adds steps: their seconds, how many were made with each tree, and what rows emitted in how many forwards."""
        self.left -= int(used.sum())
        self._used, self._seconds = self._used + used, self._seconds + seconds
        self._tokens, self._forwards = self._tokens + tokens, self._forwards + forwards

    def made(self) -> Made:
        """Returns what all of them did."""
        return Made(self._used, self._seconds, self._expected, emitted=self._tokens / max(self._forwards, 1.0))


class SizedCalls:
    """Divides the steps of a session into calls.

    With a follower, trees are chosen by what steps take; a call of which the session asks for one step goes on in its
    next ones, for a step alone tells little. Without one the cost curve alone decides, a call ends where a
    round ends, and what was chosen is recorded: where trees bear on the text, the same curve gives the same text again.

    Attributes:
      choices: drafted nodes and steps of each call, in order; empty with a follower.
    """

    def __init__(self, follower: Follower | StoppingFollower | None, mesh: Mesh | None):
        """Begins with what a follower knows.

        Args:
          follower: learns what steps take; None where nothing is to be learned.
          mesh: that the state lies on.
        """
        self._follower, self._mesh = follower, mesh
        if follower is not None:
            follower.begin()
        self.choices: list[tuple[int, int]] = []
        self._begun: _Begun | None = None

    @property
    def costs(self) -> list[float]:
        """Plain steps that a step with each tree was found to take; empty without a follower."""
        return [] if self._follower is None else self._follower.costs.tolist()

    def call(self, state: DecodeState, steps: int, loop: Loop) -> tuple[DecodeState, int]:
        """Makes one call.

        Args:
          state: of a method whose trees are sized.
          steps: at most.
          loop: makes steps.

        Returns:
          The state, and the steps that the call was to make.
        """
        return self._recorded(state, steps, loop) if self._follower is None else self._followed(state, steps, loop)

    def _recorded(self, state: DecodeState, steps: int, loop: Loop) -> tuple[DecodeState, int]:
        trees = state.shared.memory["trees"]
        before, choice = jax.device_get((trees.sizing.steps, trees.choice))
        steps, nodes = min(steps, ROUND_STEPS - int(before) % ROUND_STEPS), trees.ladder[int(choice)].nodes - 1
        state, _ = loop(state, steps, time.perf_counter)
        made = int(state.shared.memory["trees"].sizing.steps) - int(before)
        if self.choices and self.choices[-1][0] == nodes:
            made += self.choices.pop()[1]
        self.choices.append((nodes, made))
        return state, steps

    def _followed(self, state: DecodeState, steps: int, loop: Loop) -> tuple[DecodeState, int]:
        follower = self._follower
        assert follower is not None
        expected, *before = _told(state)
        begins = self._begun is None
        begun = self._begun = self._begun or _Begun(follower.next(expected, max(steps, LEAST_STEPS)), expected)
        if begins or begun.call.alone:
            state = self._prepared(state, begun.call, follower.weights)
        steps = min(steps, begun.left)
        state, seconds = loop(state, steps, follower.clock)
        _, *after = _told(state)
        used, tokens, forwards = (now - then for now, then in zip(after, before, strict=True))
        begun.add(seconds, used, float(tokens.sum()), float(forwards.sum()))
        if not begun.left or used.sum() < steps:
            self._begun = None
            follower.heard(begun.call, begun.made())
        return state, steps

    def _prepared(self, state: DecodeState, call: Call, weights: np.ndarray) -> DecodeState:
        """Sets the tree that a call begins with, and the costs by which it chooses others."""
        if call.alone:
            weights = np.where(np.arange(len(weights)) == call.rung, 1.0, np.inf)
        memory = state.shared.memory
        trees = memory["trees"]
        seconds = put(jnp.asarray(weights, jnp.float32), self._mesh)
        choice = put(jnp.asarray(call.rung, jnp.int32), self._mesh)
        trees = replace(trees, choice=choice, sizing=replace(trees.sizing, seconds=seconds))
        return replace(state, shared=replace(state.shared, memory=memory | {"trees": trees}))


def _told(state: DecodeState) -> list[np.ndarray]:
    """Returns what each tree emits, and so far steps by tree, and tokens and forwards by row."""
    sizing, rows = state.shared.memory["trees"].sizing, state.rows
    told = jax.device_get((sizing.expected, sizing.used, rows.output_length, rows.forwards))
    return [np.array(x) for x in told]  # Copies, for the loop writes over the state.


def is_sized(memory: dict[str, Any]) -> bool:
    """Says whether rows share a ladder whose trees are chosen while they decode."""
    trees = memory.get("trees")
    return trees is not None and trees.sizing is not None and len(trees.ladder) > 1
