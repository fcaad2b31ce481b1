"""The settings of a run that trains a predictor of a base's attention."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import optax

from jax_smash.models.predictors import PredictorConfig, predictor_for
from train.run.settings import Settings

LOSSES = ("divergence", "logits")
"""What is learned: the teacher's distribution over what an entry sees, or its scores before the softmax."""

ROLE = "butler"
"""Of the predictor's parameters."""


@dataclasses.dataclass(frozen=True)
class ButlerSettings(Settings):
    """What decides the weights that a run on given packed rows ends with.

    Attributes:
      predictor: `kind` of the form, and fields of its configuration in which it differs from the usual.
      loss: one of `LOSSES`; a gate's pages have no scores of their own to learn, only a distribution.
      recall_from: position from which held-out recall counts queries.
      recall_share: of what a query sees, how much is kept for that.
      tokenizer_sha256: of the base's `tokenizer.json`.
    """

    predictor: dict[str, Any] = dataclasses.field(default_factory=lambda: {"kind": "per_head"})
    loss: str = "divergence"
    recall_from: int = 256
    recall_share: float = 0.5
    tokenizer_sha256: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recall or self.own_rows:
            raise ValueError("recall and own_rows are settings of train.base alone")
        if self.loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}; got {self.loss!r}")
        if self.recall_from < 0 or not 0 < self.recall_share < 1:
            raise ValueError(
                f"recall_from must be at least 0, recall_share between 0 and 1; "
                f"got {self.recall_from} and {self.recall_share}"
            )
        page, ahead = self.config.page_size, self.config.look_ahead
        if page > 1 and self.loss == "logits":
            raise ValueError("loss must be divergence for a gate of pages; got 'logits'")
        if self.length % page:
            raise ValueError(f"page must divide the rows' length {self.length}; got {page}")
        if self.length < 2 * page:
            raise ValueError(f"rows must have room for 2 pages of {page}; got length {self.length}")
        if ahead >= self.length:
            raise ValueError(f"look_ahead must be less than the rows' length {self.length}; got {ahead}")

    @functools.cached_property
    def config(self) -> PredictorConfig:
        """The predictor's form and sizes."""
        if not isinstance(self.predictor, dict):
            raise ValueError(f"predictor must be an object; got {self.predictor!r}")
        fields = dict(self.predictor)
        return predictor_for(fields.pop("kind", None), self.model, **fields)

    def measured(self) -> ButlerSettings:
        """Returns the settings under which exported weights are measured: in float32."""
        return dataclasses.replace(self, dtype="float32")

    def transformation(self) -> optax.GradientTransformation:
        """Returns the optimiser of the predictor.

        Raises:
          ValueError: the run is no longer than its warm-up.
        """
        return self.optimiser.build_groups(self.steps, {ROLE: 1.0})
