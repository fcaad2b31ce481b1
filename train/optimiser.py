"""The optimiser that every training program uses."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import optax

MATRICES = ("embedding", "head")
"""Matrices whose names do not begin with `w_`."""


@dataclasses.dataclass(frozen=True)
class Optimiser:
    """AdamW with a linear warm-up and a cosine to a share of the peak.

    Attributes:
      learning_rate: the peak.
      warmup: steps from 0 to the peak.
      final: share of the peak that the last step ends on.
      b1, b2: decay of the two moments a step.
      weight_decay: of matrices alone: not of norms, not of biases.
      clip: largest norm of the whole gradient.
    """

    learning_rate: float = 2e-3
    warmup: int = 100
    final: float = 0.1
    b1: float = 0.9
    b2: float = 0.95
    weight_decay: float = 0.1
    clip: float = 1.0

    def __post_init__(self) -> None:
        if not (self.learning_rate > 0 and self.warmup >= 0 and 0 <= self.final <= 1 and self.clip > 0):
            raise ValueError(f"expected learning_rate, clip > 0, warmup >= 0, 0 <= final <= 1; got {self}")

    def schedule(self, steps: int) -> optax.Schedule:
        """Returns the learning rate of each step of a run of `steps`."""
        if steps <= self.warmup:
            raise ValueError(f"steps must exceed the {self.warmup} steps of warm-up; got {steps}")
        peak = self.learning_rate
        return optax.warmup_cosine_decay_schedule(0.0, peak, self.warmup, steps, end_value=peak * self.final)

    def build(self, steps: int) -> optax.GradientTransformation:
        """Returns the transformation of a run of `steps`; raises ValueError where that is no more than the warm-up."""
        adamw = optax.adamw(self.schedule(steps), b1=self.b1, b2=self.b2, weight_decay=self.weight_decay, mask=decayed)
        return optax.chain(optax.clip_by_global_norm(self.clip), adamw)


def decayed(params: Any) -> Any:
    """Marks the parameters that weight decay pulls towards 0: the matrices, known by their names."""

    def is_matrix(path: tuple[Any, ...], _: Any) -> bool:
        names = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
        return any(name in MATRICES or name.startswith("w_") for name in names)

    return jax.tree_util.tree_map_with_path(is_matrix, params)
