"""The configuration of a DFlash drafter."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jax_smash.config import AttentionKind, ModelConfig, RopeConfig
from jax_smash.models.config_fields import check_head_size

FULL: AttentionKind = "full"
SLIDING: AttentionKind = "sliding"

LONGEST_BLOCK = 64
"""Entries of a block at most: training attends with so many at once."""


@dataclasses.dataclass(frozen=True)
class DFlashConfig:
    """Sizes of a DFlash drafter, and the target that it fits.

    Attributes:
      vocab_size, d_model, target_layers: V, D and L of the target. The drafter is as wide.
      taps: which of the target's taps are joined to a context feature, in order: tap i is the residual that enters
        layer i, and tap L the one before the final norm. Published `target_layer_ids` count what layers give out, so
        that id i is tap i + 1.
      num_layers, num_heads, num_kv_heads, head_width, mlp_width: of the drafter's layers.
      block_size: entries of a block: the pending token, and a masked token for each place behind it.
      max_positions: positions that it has; it drafts nothing behind them. It may have been trained on shorter rows.
      mask_token: whose vector of the target stands for a masked token; None for a vector of the drafter's own.
      window: an entry sees this many positions, its own included; 0 for all.
      norm_epsilon: of every norm.
      rope: rotary embedding of the layers.
      head_size: tokens that it can say by the target's head; 0 for all.
    """

    vocab_size: int
    d_model: int
    target_layers: int
    taps: tuple[int, ...]
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    mlp_width: int
    block_size: int
    max_positions: int
    mask_token: int | None = None
    window: int = 0
    norm_epsilon: float = 1e-6
    rope: RopeConfig = RopeConfig()  # noqa: RUF009 - frozen
    head_size: int = 0

    def __post_init__(self) -> None:
        for name in ("target_layers", "max_positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if not self.taps or list(self.taps) != sorted({*self.taps}):
            raise ValueError(f"taps must be one or more of the target's, in order, each once; got {list(self.taps)}")
        if not 0 <= self.taps[0] <= self.taps[-1] <= self.target_layers:
            raise ValueError(f"taps must be from 0 to the target's {self.target_layers} layers; got {list(self.taps)}")
        if not 2 <= self.block_size <= LONGEST_BLOCK:
            raise ValueError(f"block_size must be from 2 to {LONGEST_BLOCK} entries; got {self.block_size}")
        if self.mask_token is not None and not 0 <= self.mask_token < self.vocab_size:
            raise ValueError(
                f"mask_token must be one of the vocabulary's {self.vocab_size} ids, or none; got {self.mask_token}"
            )
        if self.window and self.window < self.block_size:
            raise ValueError(
                f"window must be 0 or at least the block's {self.block_size} entries, which see each other; "
                f"got {self.window}"
            )
        check_head_size(self.head_size, self.vocab_size)
        _ = self.layers  # Checks the other sizes.

    @classmethod
    def for_target(cls, target: ModelConfig, **changes: Any) -> "DFlashConfig":
        """Returns a drafter of five layers of the target's own sizes and blocks of 16, with some fields changed.

        Raises:
          ValueError: a size is out of range.
        """
        fields: dict[str, Any] = {
            "vocab_size": target.vocab_size,
            "d_model": target.d_model,
            "target_layers": target.num_layers,
            "taps": even_taps(target.num_layers, changes.get("num_layers", 5)),
            "num_layers": 5,
            "num_heads": target.num_heads,
            "num_kv_heads": target.num_kv_heads,
            "head_width": target.head_width,
            "mlp_width": target.mlp_width,
            "block_size": 16,
            "max_positions": target.max_positions,
            "norm_epsilon": target.norm_epsilon,
            "rope": target.rope_of(FULL if FULL in target.layer_kinds else SLIDING),
        }
        return cls(**(fields | changes))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "DFlashConfig":
        """Returns the configuration that `to_fields` wrote. What is newer than some files has its default.

        Raises:
          ValueError: a field is missing, unknown, of the wrong type or out of range.
        """
        declared, fields = {field.name: field for field in dataclasses.fields(cls)}, {"head_size": 0, **fields}
        if missing := sorted({*declared} - {*fields}):
            raise ValueError(f"{missing[0]} is missing")
        if unknown := sorted({*fields} - {*declared}):
            raise ValueError(f"unknown field {unknown[0]!r}")
        if not isinstance(fields["rope"], Mapping):
            raise ValueError(f"rope must be an object; got {fields['rope']!r}")
        if not isinstance(fields["taps"], list) or not all(type(tap) is int for tap in fields["taps"]):
            raise ValueError(f"taps must be a list of whole numbers; got {fields['taps']!r}")
        if fields["mask_token"] is not None and type(fields["mask_token"]) is not int:
            raise ValueError(f"mask_token must be a whole number or null; got {fields['mask_token']!r}")
        for name, value in fields.items():
            kind = declared[name].type
            if kind in (int, float) and type(value) is not kind:
                raise ValueError(f"{name} must be of type {getattr(kind, '__name__', kind)}; got {value!r}")
        given: Any = {name: tuple(x) if isinstance(x, list) else x for name, x in fields["rope"].items()}
        try:
            return cls(**{**fields, "taps": tuple(fields["taps"]), "rope": RopeConfig(**given)})
        except TypeError as error:
            raise ValueError(f"rope: {error}") from error

    def to_fields(self) -> dict[str, Any]:
        """Returns the fields as JSON holds them."""
        return dataclasses.asdict(self) | {"taps": list(self.taps)}

    @property
    def kind(self) -> AttentionKind:
        """Of every layer's attention."""
        return SLIDING if self.window else FULL

    @property
    def layers(self) -> ModelConfig:
        """The drafter's layers as a model's."""
        return ModelConfig(
            family="dflash",
            vocab_size=self.vocab_size,
            num_layers=self.num_layers,
            d_model=self.d_model,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_width=self.head_width,
            mlp_width=self.mlp_width,
            max_positions=self.max_positions,
            layer_kinds=(self.kind,) * self.num_layers,
            window=self.window,
            norm_epsilon=self.norm_epsilon,
            rope=self.rope,
            rope_sliding=self.rope,
            qk_norm=True,
        )


def even_taps(layers: int, count: int) -> tuple[int, ...]:
    """Returns what so many layers of a target give out, from the second to the third from the end, evenly spread.

    Of a target of 36 layers, five are those behind layers 1, 9, 17, 25 and 33, counted from 0: taps 2, 10, 18, 26 and
    34. Of a shallow target they are fewer.
    """
    first, last = min(1, layers - 1), max(layers - 3, min(1, layers - 1))
    if count == 1:
        return (layers // 2 + 1,) if layers > 1 else (1,)
    behind = {round(first + place * (last - first) / (count - 1)) for place in range(count)}
    return tuple(sorted(layer + 1 for layer in behind))
