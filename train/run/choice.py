"""Which step of a run is exported: the one that did best on rows that are kept for this choice alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jax_smash.hosts import decided
from train.run.checkpoint import Checkpoints, load_newest, newest_notes, newest_step, remove_after
from train.run.step import Measured

BEST = "best"
"""Folder of a run that holds the weights of its best step."""

SCORE_NOTE = "choice_score"
"""Among a checkpoint's notes: the score that it was kept for."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """How a run chooses among the steps that it evaluates.

    Attributes:
      sets: named sets of batches, which are neither trained on nor reported.
      score: of what is measured on them. The step with the highest score is chosen; of equal scores, the first.
    """

    sets: Mapping[str, Iterable[Any]]
    score: Callable[[Measured], float]


class Chosen(NamedTuple):
    """A step, and the score that it was chosen for; None where it is the last one."""

    step: int
    score: float | None = None


class Best:
    """The best step of a run so far, kept on disk. Close it, or use it as a context.

    Args:
      output: folder of the run.
      choice: how steps are scored.
      resumed: step that the run goes on from. Later ones, which a run that died has kept, are made again: they are
        removed.
    """

    def __init__(self, output: Path, choice: Choice, resumed: int = 0):
        self.choice = choice
        decided(lambda: remove_after(output / BEST, resumed))
        self._checkpoints = Checkpoints(output / BEST)
        kept = chosen_step(output)
        self._score = -math.inf if kept is None or kept.score is None else kept.score

    def __enter__(self) -> Best:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._checkpoints.__exit__(kind, *rest)

    def offer(self, step: int, params: Any, measured: Measured) -> Chosen:
        """Keeps the weights of a step if it is the best so far; returns the step with its score.

        Args:
          step: steps that made the weights.
          params: the weights, which are copied before this returns.
          measured: on the sets of the choice.
        """
        score = self.choice.score(measured)
        if score > self._score:
            self._checkpoints.save(step, params, {SCORE_NOTE: score})
            self._score = score
        return Chosen(step, score)

    def wait(self) -> None:
        """Returns when the best step is on disk."""
        self._checkpoints.wait()


def chosen_step(output: Path) -> Chosen | None:
    """Returns the best step of a run's folder; None where none was kept. Of several hosts the first one looks."""

    def found() -> tuple[int, float] | None:
        step = newest_step(output / BEST)
        return None if step is None else (step, newest_notes(output / BEST)[SCORE_NOTE])

    chosen = decided(found)
    return None if chosen is None else Chosen(*chosen)


def chosen_params(output: Path, like: Any) -> Any:
    """Returns the weights of a run's best step, in the structure, shapes and shardings of a pytree.

    Raises:
      ValueError: they are not there, damaged, or of another shape.
    """
    return load_newest(output / BEST, like)[0]
