"""The optimisers that every training program may use."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, muon

MATRICES = ("embedding", "head", "heads", "w")
"""Matrices whose names do not begin with `w_`."""

FACTORS = ("a", "b")
"""Of a low-rank change, under the dotted name of its matrix."""

ORTHOGONAL = {
    "w_qkv": MuonDimensionNumbers(0, 1),
    "w_o": MuonDimensionNumbers((0, 1, 2), 3),
    "w_gate_up": MuonDimensionNumbers(1, 2),
    "w_down": MuonDimensionNumbers(0, 1),
}
"""What Muon reads as rows and columns of each weight; gate and up are two matrices. Other parameters go to AdamW."""

RANKS = {"w_qkv": 2, "w_o": 4, "w_gate_up": 3, "w_down": 2}
"""Axes of each."""


@dataclasses.dataclass(frozen=True)
class Optimiser:
    """AdamW, or Muon for the layers' matrices, with a linear warm-up and a decay to a share of the peak.

    Muon's updates are scaled to the size that AdamW's have, so both take the same learning rates. Embeddings of rare
    tokens want a lower one: AdamW's steps push all of them the same way until they can hardly be told apart.

    Source: AdamW, Loshchilov & Hutter 2019; Muon, Jordan 2024, scaled as in Liu et al. 2025 (arXiv 2502.16982).

    Attributes:
      name: `adamw` or `muon`.
      learning_rate: the peak.
      vector_share: beside Muon, AdamW's learning rate for embeddings, norms and biases as a share of Muon's.
      warmup: steps from 0 to the peak.
      decay: from the peak on, a `cosine` or `linear`.
      final: share of the peak that the last step ends on.
      b1, b2: decay of the two moments a step.
      weight_decay: of matrices alone: not of norms, not of biases.
      clip: largest norm of the whole gradient.
      clip_value: largest magnitude of each of its numbers, in place of that norm; 0 for none.
    """

    name: str = "adamw"
    learning_rate: float = 2e-3
    vector_share: float = 1.0
    warmup: int = 100
    decay: str = "cosine"
    final: float = 0.1
    b1: float = 0.9
    b2: float = 0.95
    weight_decay: float = 0.1
    clip: float = 1.0
    clip_value: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("adamw", "muon"):
            raise ValueError(f"the optimiser must be adamw or muon; got {self.name!r}")
        if self.decay not in ("cosine", "linear"):
            raise ValueError(f"decay must be cosine or linear; got {self.decay!r}")
        if not (
            0 < self.learning_rate < float("inf")
            and 0 < self.vector_share < float("inf")
            and 0 <= self.b1 < 1
            and 0 <= self.b2 < 1
            and 0 <= self.weight_decay < float("inf")
            and self.warmup >= 0
            and 0 <= self.final <= 1
            and self.clip > 0
            and self.clip_value >= 0
        ):
            raise ValueError(
                "expected learning_rate, vector_share, clip > 0, warmup, clip_value >= 0, 0 <= final <= 1, 0 <= b1, b2 "
                f"< 1 and weight_decay >= 0, of these learning_rate, vector_share and weight_decay finite; got {self}"
            )

    def described(self, of: str = "") -> str:
        """Returns what a card says of it.

        Args:
          of: what learns at that rate, with a space behind it.
        """
        name = {"adamw": "AdamW", "muon": "Muon for the layers' matrices, AdamW for the rest"}[self.name]
        clip = f"each number of the gradient clipped to {self.clip_value}" if self.clip_value else f"clip {self.clip}"
        update = f"{name}, b1 {self.b1}, b2 {self.b2}, weight decay {self.weight_decay} on matrices, {clip}"
        rate = f"peak learning rate {of}{self.learning_rate:g}, {self.warmup} steps of warm-up"
        return f"{update}; {rate}, {self.decay} to {self.final:g} of the peak"

    def schedule(self, steps: int) -> optax.Schedule:
        """Returns the learning rate of each step of a run of `steps`.

        Raises:
          ValueError: the run is no longer than its warm-up.
        """
        self._check(steps)
        return self._schedule(self.learning_rate, steps)

    def _check(self, steps: int) -> None:
        if steps <= self.warmup:
            raise ValueError(f"steps must exceed the {self.warmup} steps of warm-up; got {steps}")

    def _schedule(self, peak: float, steps: int) -> optax.Schedule:
        last = peak * self.final
        if self.decay == "cosine":
            return optax.warmup_cosine_decay_schedule(0.0, peak, self.warmup, steps, end_value=last)
        up = optax.linear_schedule(0.0, peak, self.warmup)
        return optax.join_schedules([up, optax.linear_schedule(peak, last, steps - self.warmup)], [self.warmup])

    def build(self, steps: int) -> optax.GradientTransformation:
        """Returns the transformation of a run of `steps`; raises ValueError where that is no more than the warm-up."""
        self._check(steps)
        return optax.chain(self._clipped(), self._update(steps, 1.0))

    def _clipped(self) -> optax.GradientTransformation:
        return optax.clip(self.clip_value) if self.clip_value else optax.clip_by_global_norm(self.clip)

    def build_groups(self, steps: int, shares: Mapping[str, float]) -> optax.GradientTransformation:
        """Returns the transformation of parameters in groups, by their names in a mapping, that learn at other rates.

        Args:
          steps: of the run.
          shares: of the learning rate that a group learns at, by its name; one of 0 stays as it is.

        Raises:
          ValueError: the run is no longer than its warm-up.
        """
        self._check(steps)
        by_group = {
            name: self._update(steps, share) if share else optax.set_to_zero() for name, share in shares.items()
        }
        groups = optax.partition(by_group, {name: name for name in shares})
        return optax.chain(self._clipped(), groups)

    def _update(self, steps: int, share: float) -> optax.GradientTransformation:
        peak = self.learning_rate * share
        rate = self._schedule(peak, steps)
        if self.name == "adamw":
            return optax.adamw(rate, b1=self.b1, b2=self.b2, weight_decay=self.weight_decay, mask=decayed)
        return muon(
            rate,
            beta=self.b2,
            weight_decay=self.weight_decay,
            adam_b1=self.b1,
            adam_b2=self.b2,
            adam_weight_decay=0.0,
            adam_learning_rate=self._schedule(peak * self.vector_share, steps),
            muon_weight_dimension_numbers=orthogonal,
            consistent_rms=0.2,
        )


def decayed(params: Any) -> Any:
    """Marks the parameters that weight decay pulls towards 0: the matrices, known by their names."""

    def names_matrix(name: str) -> bool:
        return name in MATRICES or name.startswith("w_")

    def is_matrix(path: tuple[Any, ...], _: Any) -> bool:
        *_, outer, name = ("", *_names(path))
        return names_matrix(name) or (name in FACTORS and names_matrix(outer.split(".")[-1]))

    return jax.tree_util.tree_map_with_path(is_matrix, params)


def orthogonal(params: Any) -> Any:
    """Marks the parameters that Muon updates with what it reads as their rows and columns; None for the others."""

    def dimensions(path: tuple[Any, ...], x: Any) -> MuonDimensionNumbers | None:
        found = next((name for name in _names(path) if name in ORTHOGONAL), None)
        # Weights of other layers have some of these names, and other axes.
        return ORTHOGONAL[found] if found is not None and x.ndim == RANKS[found] else None

    return jax.tree_util.tree_map_with_path(dimensions, params)


def _names(path: tuple[Any, ...]) -> list[str]:
    return jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value").split("/")
