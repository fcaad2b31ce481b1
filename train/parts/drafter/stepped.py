"""What drafters that go on from what they made themselves have in common: how many depths of it are evaluated."""

from __future__ import annotations

import dataclasses
from typing import Any

from train.parts.drafter.beside import BesideTarget
from train.parts.drafter.settings import Eagle1Settings, EagleSettings
from train.run.step import Objective

DEPTHS = 4
"""Depths whose accuracies choose a step, where fewer are trained: decoding goes on from the drafter's own features."""


@dataclasses.dataclass(frozen=True)
class SteppedPart(BesideTarget):
    """A drafter that is trained by `test_steps`, and evaluated by at least `DEPTHS` of them where rows have as many.

    Attributes:
      settings: of the run.
    """

    settings: EagleSettings | Eagle1Settings

    @property
    def depths(self) -> int:
        """Depths that are evaluated."""
        return max(self.settings.test_steps, min(DEPTHS, self.settings.length - 1))

    def evaluated(self) -> Objective:
        """Returns the objective, which tells of all depths."""
        return self._objective(self.settings, self.depths)

    def measured(self) -> Objective:
        """Returns the cross-entropy of what is trained, in float32, which tells of all depths."""
        return self._objective(self.settings.measured(), self.depths)

    def _objective(self, settings: Any, depths: int | None = None) -> Objective:
        raise NotImplementedError
