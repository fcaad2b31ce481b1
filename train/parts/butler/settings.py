"""The settings of a run that trains predictors of a base's attention."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import Any

import optax

from jax_smash.models.predictors import (
    GroupedConfig,
    LowRankConfig,
    PredictorConfig,
    int4_keys,
    int8_keys,
    predictor_for,
)
from train.run.settings import Settings, check_unused

LOSSES = ("divergence", "logits")
"""What is learned: the teacher's distribution over what an entry sees, or its scores before the softmax."""

ROUNDED = {0: None, 4: int4_keys, 8: int8_keys}
"""How keys are kept by the bits of each of their numbers; 0 keeps them whole."""

ROLE = "butler"
"""Of the predictors' parameters."""

MEASURED = 8
"""Held-out rows are measured by one query in so many."""

NAME = re.compile(r"[A-Za-z0-9_-]+")
"""What a predictor, and its folder, may be called."""


@dataclasses.dataclass(frozen=True)
class ButlerSettings(Settings):
    """What decides the weights that a run on given packed rows ends with.

    Attributes:
      predictors: of each, by a name of one's choice, the `kind` of its form and fields of its configuration in which it
        differs from the usual. All are trained in one run, so that the base's forward is paid for once.
      loss: one of `LOSSES`; a gate's pages have no scores of their own to learn, only a distribution.
      query_stride: one query in so many of a row is learned from; which, differs from row to row.
      key_bits: 4 or 8 where projected keys are rounded as a policy with `int4` or `int8` keeps them, so that predictors
        learn to answer those; gradients pass as if they were whole. 0 leaves them whole.
      recall_from: position from which held-out recall counts queries.
      recall_layer: first layer whose recall counts. Predictors that read different layers can be compared where it is
        one that all of them predict.
      recall_share: of what a query sees, how much is kept for that.
      tokenizer_sha256: of the base's `tokenizer.json`.
    """

    predictors: dict[str, dict[str, Any]] = dataclasses.field(default_factory=lambda: {"butler": {"kind": "per_head"}})
    loss: str = "divergence"
    query_stride: int = 1
    key_bits: int = 0
    recall_from: int = 256
    recall_layer: int = 0
    recall_share: float = 0.5
    tokenizer_sha256: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_unused(self, "a predictor", "answer_weight", "circle_weight", "own_every", "remat")
        if self.loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}; got {self.loss!r}")
        if self.recall_from < 0 or not 0 < self.recall_share < 1:
            raise ValueError(
                f"recall_from must be at least 0, recall_share between 0 and 1; "
                f"got {self.recall_from} and {self.recall_share}"
            )
        if not 0 <= self.recall_layer < self.model.num_layers:
            raise ValueError(
                f"recall_layer must be from 0 to the base's last layer, {self.model.num_layers - 1}; "
                f"got {self.recall_layer}"
            )
        if self.query_stride < 1 or self.length % self.query_stride:
            raise ValueError(f"query_stride must divide the rows' length {self.length}; got {self.query_stride}")
        if self.key_bits not in ROUNDED:
            raise ValueError(f"key_bits must be one of {', '.join(map(str, ROUNDED))}; got {self.key_bits}")
        for config in self.configs.values():
            self._check_lengths(config)
            if self.key_bits and not isinstance(config, GroupedConfig | LowRankConfig):
                raise ValueError(f"key_bits must be 0 where keys are kept whole, as {config.kind} has them")
            if self.key_bits and isinstance(config, GroupedConfig) and config.int8:
                raise ValueError("key_bits must be 0 beside a predictor that rounds its keys itself, as with int8")

    def _check_lengths(self, config: PredictorConfig) -> None:
        page, ahead = config.page_size, config.look_ahead
        if page > 1 and self.loss == "logits":
            raise ValueError("loss must be divergence for a gate of pages; got 'logits'")
        if self.length % page:
            raise ValueError(f"page must divide the rows' length {self.length}; got {page}")
        if self.length < 2 * page:
            raise ValueError(f"rows must have room for 2 pages of {page}; got length {self.length}")
        if ahead >= self.length:
            raise ValueError(f"look_ahead must be less than the rows' length {self.length}; got {ahead}")

    @functools.cached_property
    def configs(self) -> dict[str, PredictorConfig]:
        """Each predictor's form and sizes, by name."""
        if not isinstance(self.predictors, dict) or not self.predictors:
            raise ValueError(f"predictors must be an object with one at least; got {self.predictors!r}")
        return {name: self._config(name, fields) for name, fields in self.predictors.items()}

    def _config(self, name: str, fields: Any) -> PredictorConfig:
        if not NAME.fullmatch(name):
            raise ValueError(f"a predictor's name must be of letters, digits, '-' and '_'; got {name!r}")
        if not isinstance(fields, dict):
            raise ValueError(f"predictor {name} must be an object; got {fields!r}")
        return predictor_for(fields.get("kind"), self.model, **{k: v for k, v in fields.items() if k != "kind"})

    def measured(self) -> ButlerSettings:
        """Returns the settings under which exported weights are measured: in float32."""
        return dataclasses.replace(self.evaluated(), dtype="float32")

    def evaluated(self) -> ButlerSettings:
        """Returns the settings under which held-out rows are measured: by one query in `MEASURED`."""
        return dataclasses.replace(self, query_stride=math.gcd(self.length, MEASURED))

    def transformation(self) -> optax.GradientTransformation:
        """Returns the optimiser of the predictors.

        Raises:
          ValueError: the run is no longer than its warm-up.
        """
        return self.optimiser.build_groups(self.steps, {ROLE: 1.0})
