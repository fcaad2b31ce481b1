"""The configuration of a Chimera drafter."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jax_smash.config import AttentionKind, ModelConfig, RopeConfig
from jax_smash.models.config_fields import check_head_size, config_of

FULL: AttentionKind = "full"

TEXT_LAYER = "layer"

GRAM_ENCODERS = ("mlp", "residual", TEXT_LAYER)
"""Forms of the encoder of grams: the paper's, that of its published code, and the layer that the paper compares."""

LONGEST_GRAM = 5


@dataclasses.dataclass(frozen=True)
class ChimeraConfig:
    """Sizes and forms of a Chimera drafter, and the target that it fits.

    Attributes:
      vocab_size, d_model: V and D of the target. The drafter is as wide.
      num_heads, num_kv_heads, head_width, mlp_width: N, K, H and F of the layer that encodes the whole context.
      max_positions: positions that it has; it drafts nothing behind them. It may have been trained on shorter rows.
      gram: tokens of a gram, from 1 to 5; 3 makes trigrams.
      gram_encoder: `mlp` for two matrices with SiLU between them, where a token before the text's first counts 0;
        `residual` for a residual block over the whole gram before one matrix, where the first token stands for it;
        `layer` for a transformer layer over all of the text in place of grams, whose heads can be measured, and which
        no method drafts with.
      encoder_mlp_width: F of the encoder where it is a layer, and 0 where it is none.
      decoding_heads: later tokens that are guessed, each by a head of its own.
      residual_heads: heads also read the target's hidden state of the last token that it has read.
      norm_epsilon: of every norm.
      rope: rotary embedding of the layer.
      head_size: tokens that it can say by the target's head; 0 for all.
    """

    vocab_size: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    mlp_width: int
    max_positions: int
    gram: int = 3
    gram_encoder: str = "mlp"
    encoder_mlp_width: int = 0
    decoding_heads: int = 4
    residual_heads: bool = True
    norm_epsilon: float = 1e-6
    rope: RopeConfig = RopeConfig()  # noqa: RUF009 - frozen
    head_size: int = 0

    def __post_init__(self) -> None:
        for name in ("max_positions", "decoding_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if not 1 <= self.gram <= LONGEST_GRAM:
            raise ValueError(f"gram must be from 1 to {LONGEST_GRAM} tokens; got {self.gram}")
        if self.gram_encoder not in GRAM_ENCODERS:
            raise ValueError(f"gram_encoder must be one of {', '.join(GRAM_ENCODERS)}; got {self.gram_encoder!r}")
        if (self.encoder_mlp_width > 0) != self.encodes_text or self.encoder_mlp_width < 0:
            raise ValueError(
                f"encoder_mlp_width must be above 0 with gram_encoder {TEXT_LAYER} alone, and else 0; "
                f"got {self.encoder_mlp_width} with {self.gram_encoder}"
            )
        check_head_size(self.head_size, self.vocab_size)
        _ = self.layer  # Checks the other sizes.

    @classmethod
    def for_target(cls, target: ModelConfig, **changes: Any) -> "ChimeraConfig":
        """Returns a drafter with a layer of the target's own sizes, with some fields changed.

        Raises:
          ValueError: a size is out of range.
        """
        fields: dict[str, Any] = {
            "vocab_size": target.vocab_size,
            "d_model": target.d_model,
            "num_heads": target.num_heads,
            "num_kv_heads": target.num_kv_heads,
            "head_width": target.head_width,
            "mlp_width": target.mlp_width,
            "max_positions": target.max_positions,
            "norm_epsilon": target.norm_epsilon,
            "rope": target.rope_of(FULL if FULL in target.layer_kinds else "sliding"),
        }
        return cls(**(fields | changes))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "ChimeraConfig":
        """Returns the configuration that `to_fields` wrote. What is newer than some files has its default.

        Raises:
          ValueError: a field is missing, unknown, of the wrong type or out of range.
        """
        return config_of(
            cls, {"encoder_mlp_width": 0, "residual_heads": True, "head_size": 0} | dict(fields), whole=True
        )

    def to_fields(self) -> dict[str, Any]:
        """Returns the fields as JSON holds them."""
        return dataclasses.asdict(self)

    @property
    def encodes_text(self) -> bool:
        """Whether a layer over all of the text stands in place of an encoder of grams."""
        return self.gram_encoder == TEXT_LAYER

    @property
    def encoder_layer(self) -> ModelConfig:
        """The encoder of the text as a model's layer."""
        return dataclasses.replace(self.layer, mlp_width=self.encoder_mlp_width)

    @property
    def layer(self) -> ModelConfig:
        """The drafter's layer as a model's."""
        return ModelConfig(
            family="chimera",
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
