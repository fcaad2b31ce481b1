"""The configuration of an EAGLE-3 drafter."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jax_smash.config import AttentionKind, ModelConfig, RopeConfig
from jax_smash.models.config_fields import config_of

FULL: AttentionKind = "full"


@dataclasses.dataclass(frozen=True)
class EagleConfig:
    """Sizes and switches of an EAGLE-3 drafter, and the target that it fits.

    Attributes:
      vocab_size, d_model, target_layers: V, D and L of the target. The drafter is as wide.
      taps: which of the target's taps are joined to a feature, in order: tap i is the residual that enters layer i, and
        tap L the one before the final norm. Published configurations count otherwise, and not all alike.
      num_heads, num_kv_heads, head_width, mlp_width: N, K, H and F of the drafter's layer.
      head_size: tokens that the drafter can say, at most V.
      max_positions: positions that it has; it drafts nothing behind them. It may have been trained on shorter rows.
      norm_epsilon: of every norm.
      rope: rotary embedding of the layer.
      tap_norms: each tap is normed before they are joined (EAGLE-3.1).
      feeds_normed: what a drafted token's children are drafted from is normed, too (EAGLE-3.1).
      residual_normed: the layer's residual begins with the normed feature, not with the feature.
      own_rows: the head has rows of its own; else it has the target's.
    """

    vocab_size: int
    d_model: int
    target_layers: int
    taps: tuple[int, ...]
    num_heads: int
    num_kv_heads: int
    head_width: int
    mlp_width: int
    head_size: int
    max_positions: int
    norm_epsilon: float = 1e-6
    rope: RopeConfig = RopeConfig()  # noqa: RUF009 - frozen
    tap_norms: bool = False
    feeds_normed: bool = False
    residual_normed: bool = False
    own_rows: bool = True

    def __post_init__(self) -> None:
        for name in ("target_layers", "max_positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if not self.taps or list(self.taps) != sorted({*self.taps}):
            raise ValueError(f"taps must be one or more of the target's, in order, each once; got {list(self.taps)}")
        if not 0 <= self.taps[0] <= self.taps[-1] <= self.target_layers:
            raise ValueError(f"taps must be from 0 to the target's {self.target_layers} layers; got {list(self.taps)}")
        if not 1 <= self.head_size <= self.vocab_size:
            raise ValueError(f"head_size must be from 1 to the vocabulary's {self.vocab_size}; got {self.head_size}")
        _ = self.layer  # Checks the other sizes.

    @classmethod
    def for_target(cls, target: ModelConfig, **changes: Any) -> "EagleConfig":
        """Returns a drafter with a layer of the target's own sizes, with some fields changed.

        It taps what enters layers 2, L/2 and L − 3; of a shallow target, those of them that there are.

        Raises:
          ValueError: a size is out of range.
        """
        layers = target.num_layers
        rope = target.rope_of(FULL if FULL in target.layer_kinds else "sliding")
        fields: dict[str, Any] = {
            "vocab_size": target.vocab_size,
            "d_model": target.d_model,
            "target_layers": layers,
            "taps": tuple(sorted({min(2, layers), layers // 2, max(layers - 3, 1)})),
            "num_heads": target.num_heads,
            "num_kv_heads": target.num_kv_heads,
            "head_width": target.head_width,
            "mlp_width": target.mlp_width,
            "head_size": target.vocab_size,
            "max_positions": target.max_positions,
            "norm_epsilon": target.norm_epsilon,
            "rope": rope,
        }
        return cls(**(fields | changes))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "EagleConfig":
        """Returns the configuration that `to_fields` wrote.

        Raises:
          ValueError: a field is missing, unknown, of the wrong type or out of range.
        """
        return config_of(cls, fields)

    def to_fields(self) -> dict[str, Any]:
        """Returns the fields as JSON holds them."""
        return dataclasses.asdict(self) | {"taps": list(self.taps)}

    @property
    def layer(self) -> ModelConfig:
        """The drafter's layer as a model's."""
        return ModelConfig(
            family="eagle3",
            vocab_size=self.vocab_size,
            num_layers=1,
            d_model=self.d_model,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_width=self.head_width,
            mlp_width=self.mlp_width,
            max_positions=self.max_positions,
            layer_kinds=(FULL,),
            norm_epsilon=self.norm_epsilon,
            rope=self.rope,
        )
