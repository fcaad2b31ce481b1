"""What all predictors of attention are configured by."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from jax_smash.config import ModelConfig, RopeConfig

Config = TypeVar("Config", bound="PredictorConfig")

SIZES = ("d_model", "num_layers", "num_heads", "num_kv_heads", "head_width")
"""Fields that a predictor has from its base."""


@dataclasses.dataclass(frozen=True)
class PredictorConfig:
    """Sizes of a base, and what predictors of every form have.

    Attributes:
      d_model, num_layers, num_heads, num_kv_heads, head_width: D, L, N, K and H of the base.
      rope_base: wavelength base of the predictor's own rotary embeddings.
      look_ahead: entries between the one that a query is made of and the one whose attention it predicts. With 1 the
        slots of a step are known before it begins.
      refresh: steps that one choice of slots serves.
    """

    d_model: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    rope_base: float = 10_000.0
    look_ahead: int = 0
    refresh: int = 1

    kind: ClassVar[str]
    """Name of the form."""

    def __post_init__(self) -> None:
        for name in (*SIZES, "refresh"):
            self._at_least(1, name)
        self._at_least(0, "look_ahead")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads; got {self.num_heads} and {self.num_kv_heads}"
            )
        if not self.rope_base > 1:
            raise ValueError(f"rope_base must be above 1; got {self.rope_base}")

    @classmethod
    def for_base(cls: type[Config], base: ModelConfig, **changes: Any) -> Config:
        """Returns a predictor of the usual sizes for a base, with some fields changed.

        Raises:
          ValueError: a field is unknown or out of range, or the base's heads are held several times.
        """
        if base.kv_copies > 1:
            raise ValueError(f"a predictor needs a base that holds each KV head once; got kv_copies {base.kv_copies}")
        sizes = {name: getattr(base, name) for name in SIZES}
        return cls.from_fields(cls.usual(base) | changes | sizes)

    @classmethod
    def usual(cls, base: ModelConfig) -> dict[str, Any]:
        """Returns the fields that depend on the base, beside its sizes."""
        return {"rope_base": float(base.rope.base)}

    def check_base(self, base: ModelConfig) -> None:
        """Checks that a base has the sizes that the predictor was made for.

        Raises:
          ValueError: it has others.
        """
        for name in SIZES:
            if (own := getattr(self, name)) != (found := getattr(base, name)):
                raise ValueError(f"the predictor is for a base whose {name} is {own}; got {found}")

    @classmethod
    def from_fields(cls: type[Config], fields: Mapping[str, Any]) -> Config:
        """Returns the configuration that `to_fields` wrote.

        Raises:
          ValueError: a field is missing, unknown, of the wrong type or out of range.
        """
        declared = {field.name: field for field in dataclasses.fields(cls)}
        for name, field in declared.items():
            if field.default is dataclasses.MISSING and name not in fields:
                raise ValueError(f"{name} is missing")
        if unknown := sorted({*fields} - {*declared}):
            raise ValueError(f"unknown field {unknown[0]!r} of a predictor {cls.kind!r}")
        for name, value in fields.items():
            wanted: Any = declared[name].type
            if type(value) is not wanted:
                raise ValueError(f"{name} must be of type {wanted.__name__}; got {value!r}")
        return cls(**fields)

    def to_fields(self) -> dict[str, Any]:
        """Returns the fields as JSON holds them."""
        return dataclasses.asdict(self)

    @property
    def rope(self) -> RopeConfig:
        """Of the predictor's queries and keys."""
        return RopeConfig(base=self.rope_base)

    @property
    def first_layer(self) -> int:
        """The first layer that is predicted: those before it are dense."""
        return 0

    @property
    def page_size(self) -> int:
        """Entries that share a score."""
        return 1

    def _at_least(self, least: int, *names: str) -> None:
        for name in names:
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}; got {getattr(self, name)}")

    def _even(self, name: str, width: int) -> None:
        if width < 2 or width % 2:
            raise ValueError(f"{name} must be even for a rotary embedding; got {width}")
