"""What the modules grafted on a base are: their sizes, and which base and tokenizer they were made for."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jax_smash.config import AttentionKind, ModelConfig, identity
from jax_smash.models.families.family import in_use

EMBEDDERS = ("attention", "mean")
"""How a group's vectors become one: by cross-attention, or by their mean alone (the ablation)."""

HEAD_WIDTH = 32
"""Width of the embedder's heads, where it divides the model's."""

MOST_STEPS = 64
"""Micro-steps at most: shards keep a token's place in its group in a byte, and no base predicts so far."""


@dataclasses.dataclass(frozen=True)
class SmashConfig:
    """Sizes of the grafted modules, and the base that they fit.

    Source: Liu and Zhang 2025, "HAMburger: Accelerating LLM Inference via Token Smashing", section 3.

    Attributes:
      tapped_layers: layers of the base, counted from 0, whose outputs the micro-step decoder reads, in order. The
        residual behind a layer is read as it is; that behind the last one after the final norm.
      micro_layers: layers of the micro-step decoder, each of the base's own shape.
      micro_steps: J, tokens of a group at most; at 1 decoding is plain.
      embedder: one of `EMBEDDERS`.
      embedder_heads: heads of the embedder's cross-attention.
      base_sha256: `base_sha256` of the base's configuration.
      tokenizer_sha256: of the base's `tokenizer.json`; empty where the base has none.
    """

    tapped_layers: tuple[int, ...]
    micro_layers: int
    micro_steps: int
    embedder: str
    embedder_heads: int
    base_sha256: str
    tokenizer_sha256: str = ""

    def __post_init__(self) -> None:
        _check_count("micro_layers", self.micro_layers)
        _check_count("micro_steps", self.micro_steps)
        _check_count("embedder_heads", self.embedder_heads)
        if self.micro_steps > MOST_STEPS:
            raise ValueError(f"micro_steps must be at most {MOST_STEPS}; got {self.micro_steps}")
        if self.embedder not in EMBEDDERS:
            raise ValueError(f"embedder must be one of {', '.join(EMBEDDERS)}; got {self.embedder!r}")
        if not self.tapped_layers or list(self.tapped_layers) != sorted({*self.tapped_layers}):
            raise ValueError(f"tapped_layers must be one or more layers in order, each once; got {self.tapped_layers}")

    @classmethod
    def for_base(
        cls,
        base: ModelConfig,
        *,
        tapped_layers: Sequence[int] | None = None,
        micro_layers: int = 4,
        micro_steps: int = 4,
        embedder: str = "attention",
        embedder_heads: int | None = None,
        tokenizer_sha256: str = "",
    ) -> "SmashConfig":
        """Returns the modules' sizes for a base.

        Args:
          base: its configuration.
          tapped_layers: None taps the ends of four equal parts of the base, or every layer of a shallower one.
          micro_layers, micro_steps, embedder: as in the attributes.
          embedder_heads: None makes them `HEAD_WIDTH` wide, or as wide as divides the model's width.
          tokenizer_sha256: of the base's `tokenizer.json`.

        Raises:
          ValueError: a size is out of range, or a tapped layer does not exist.
        """
        parts = min(4, base.num_layers)
        even = tuple((part + 1) * base.num_layers // parts - 1 for part in range(parts))
        config = cls(
            tapped_layers=even if tapped_layers is None else tuple(tapped_layers),
            micro_layers=micro_layers,
            micro_steps=micro_steps,
            embedder=embedder,
            embedder_heads=base.d_model // math.gcd(base.d_model, HEAD_WIDTH)
            if embedder_heads is None
            else embedder_heads,
            base_sha256=base_sha256(base),
            tokenizer_sha256=tokenizer_sha256,
        )
        config.check_sizes(base)
        return config

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "SmashConfig":
        """Returns the configuration that `to_fields` wrote.

        Raises:
          ValueError: a field is missing, unknown or out of range.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        required = names - {"tokenizer_sha256"}
        if missing := sorted(required - {*fields}):
            raise ValueError(f"{missing[0]} is missing")
        if unknown := sorted({*fields} - names):
            raise ValueError(f"unknown field {unknown[0]!r}")
        layers = fields["tapped_layers"]
        if not isinstance(layers, list | tuple) or not all(type(layer) is int for layer in layers):
            raise ValueError(f"tapped_layers must be a list of layers; got {layers!r}")
        for name, value in fields.items():
            kind = str if name.endswith("sha256") or name == "embedder" else int
            if name != "tapped_layers" and type(value) is not kind:
                raise ValueError(f"{name} must be {'a text' if kind is str else 'a whole number'}; got {value!r}")
        return cls(**{**fields, "tapped_layers": tuple(fields["tapped_layers"])})

    def tap_numbers(self, num_layers: int) -> tuple[int | None, ...]:
        """Returns the tap that holds the output of each tapped layer; None where the hidden state stands for it.

        Args:
          num_layers: of the base.
        """
        return tuple(None if layer == num_layers - 1 else layer + 1 for layer in self.tapped_layers)

    def to_fields(self) -> dict[str, Any]:
        """Returns the fields as JSON holds them."""
        return dataclasses.asdict(self) | {"tapped_layers": list(self.tapped_layers)}

    def check_sizes(self, base: ModelConfig) -> None:
        """Refuses a base that has not the layers or the width that these sizes ask for.

        Raises:
          ValueError: a tapped layer does not exist, or the embedder's heads do not divide the model's width.
        """
        for layer in self.tapped_layers:
            if not 0 <= layer < base.num_layers:
                raise ValueError(f"tapped_layers must be layers of the base, 0 to {base.num_layers - 1}; got {layer}")
        if base.d_model % self.embedder_heads:
            raise ValueError(
                f"embedder_heads must divide the base's width of {base.d_model}; got {self.embedder_heads}"
            )

    def check_base(self, base: ModelConfig, tokenizer_sha256: str = "") -> None:
        """Refuses another base than the one that the modules were made for.

        Args:
          base: configuration of the base at hand.
          tokenizer_sha256: of its `tokenizer.json`; empty where it has none.

        Raises:
          ValueError: configuration or tokenizer is another one.
        """
        if (actual := base_sha256(base)) != self.base_sha256:
            raise ValueError(
                f"the modules were made for a base whose configuration has hash {self.base_sha256}; got {actual}"
            )
        if tokenizer_sha256 != self.tokenizer_sha256:
            raise ValueError(
                f"the modules were made for the tokenizer of hash {self.tokenizer_sha256 or 'none'}; "
                f"got {tokenizer_sha256 or 'none'}"
            )
        self.check_sizes(base)


def base_sha256(base: ModelConfig) -> str:
    """Returns a hash of what a base's configuration says; fields that no layer uses do not count."""
    fields = json.dumps(identity(in_use(base)), sort_keys=True)
    return hashlib.sha256(fields.encode()).hexdigest()


def micro_model(base: ModelConfig, micro_layers: int) -> ModelConfig:
    """Returns the configuration of the micro-step decoder's layers: those of the base, all with full attention.

    It reads so few entries that no window would leave any out. All layers have a rotary embedding.
    """
    full: AttentionKind = "full"
    rope = base.rope_of(full if full in base.layer_kinds else "sliding")
    return dataclasses.replace(
        base,
        num_layers=micro_layers,
        layer_kinds=(full,) * micro_layers,
        window=0,
        rope=rope,
        rope_sliding=rope,
        unrotated_layers=(),
        kv_copies=1,  # Where the base holds copies of its KV heads, the modules' are what their files hold.
    )


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1; got {value}")
