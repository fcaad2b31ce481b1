"""The configuration that one transformer needs to be any of the supported families."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

AttentionKind = Literal["full", "sliding"]
Activation = Literal["silu", "gelu_tanh"]


@dataclasses.dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding of one attention kind.

    Attributes:
      base: the wavelength base (`rope_theta`).
      scaling: how wavelengths are stretched for long contexts.
      factor: stretch; 1 where `scaling` is `none`.
      original_positions: context length the model was first trained for (`llama3`, `yarn`, `longrope`, `dynamic`).
      low, high: the band over which interpolation fades in: `low_freq_factor`, `high_freq_factor` (`llama3`), or
        `beta_slow`, `beta_fast` (`yarn`), in rotations over the original context.
      attention_factor: multiplies cos and sin (`yarn`, `longrope`).
      truncate: round the band's edges to whole dimensions (`yarn`).
      partial: share of each head, from its front, that is rotated; the rest stays as it is.
      short_factors, long_factors: stretch of each pair's wavelength in texts within the original context, and in longer
        ones (`longrope`).
    """

    base: float = 10_000.0
    scaling: Literal["none", "linear", "llama3", "yarn", "longrope", "dynamic"] = "none"
    factor: float = 1.0
    original_positions: int = 0
    low: float = 1.0
    high: float = 4.0
    attention_factor: float = 1.0
    truncate: bool = True
    partial: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    @property
    def follows_length(self) -> bool:
        """Whether the rotation depends on how long the text is; see `models.rope`."""
        return self.scaling in ("longrope", "dynamic")

    def rotated_width(self, head_width: int) -> int:
        """Returns how many of a head's elements are rotated."""
        return int(head_width * self.partial)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of a decoder-only transformer.

    Attributes:
      family: the Hugging Face `model_type` the checkpoint came from.
      vocab_size, num_layers, d_model, num_heads, num_kv_heads, head_width, mlp_width: V, L, D, N, K, H, F.
      max_positions: longest sequence the model was trained for, in positions.
      layer_kinds: attention kind of each layer.
      window: a sliding layer sees this many positions, its own included; 0 where no layer slides.
      rope, rope_sliding: rotary embedding of full and of sliding layers.
      unrotated_layers: layers without a rotary embedding, counted from 0.
      activation: of the gated MLP.
      norm_epsilon: of every RMSNorm.
      norm_offset: RMSNorm scales by 1 + w instead of w.
      late_rounding: norms' scales and rotary embeddings are multiplied in float32 and the product is rounded to the
        weights' dtype, not what is multiplied.
      pre_norms: a norm before attention and before the MLP.
      post_norms: a norm after attention and after the MLP, before each is added to the residual.
      qk_norm: RMSNorm over each query and key head before the rotary embedding.
      joint_qk_norm: such a norm over all query heads at once, and one over all key heads.
      qkv_bias, output_bias, mlp_bias: biases of the projections.
      query_scale: multiplies attention scores.
      embedding_scale: multiplies token embeddings, rounded to the weights' dtype.
      residual_scale: multiplies the output of attention and of the MLP before it is added to the residual.
      logits_divisor: divides logits, before they are capped.
      attention_softcap, final_softcap: cap · tanh(x / cap); 0 for none.
      tied_head: the output head is the embedding matrix.
      bos_token, eos_tokens, pad_token: ids; None or empty where the model has none.
      kv_copies: each KV head is held so many times, side by side, for as many groups of its query heads: so a mesh may
        divide more devices than there are KV heads.
    """

    family: str
    vocab_size: int
    num_layers: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    mlp_width: int
    max_positions: int
    layer_kinds: tuple[AttentionKind, ...]
    window: int = 0
    rope: RopeConfig = RopeConfig()
    rope_sliding: RopeConfig = RopeConfig()
    unrotated_layers: tuple[int, ...] = ()
    activation: Activation = "silu"
    norm_epsilon: float = 1e-6
    norm_offset: bool = False
    late_rounding: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    qk_norm: bool = False
    joint_qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    query_scale: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_divisor: float = 1.0
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    tied_head: bool = False
    bos_token: int | None = None
    eos_tokens: tuple[int, ...] = ()
    pad_token: int | None = None
    kv_copies: int = 1

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "num_layers", "d_model", "num_heads", "num_kv_heads", "head_width", "mlp_width")
        for name in (*sizes, "kv_copies"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads; got {self.num_heads} and {self.num_kv_heads}"
            )
        if self.num_heads % self.held_kv_heads:
            held = f"{self.num_heads} and {self.held_kv_heads}"
            raise ValueError(f"num_heads must be a multiple of num_kv_heads · kv_copies; got {held}")
        if self.head_width % 2:
            raise ValueError(f"head_width must be even for a rotary embedding; got {self.head_width}")
        for rope in (self.rope, self.rope_sliding):
            _check_rope(rope, self.head_width)
        if not (self.pre_norms or self.post_norms):
            raise ValueError("a layer must have norms before or after its parts; pre_norms and post_norms are both off")
        if self.qk_norm and self.joint_qk_norm:
            raise ValueError("qk_norm and joint_qk_norm exclude each other; got both")
        for name in ("residual_scale", "logits_divisor"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0; got {getattr(self, name)}")
        if len(self.layer_kinds) != self.num_layers:
            raise ValueError(f"layer_kinds must name {self.num_layers} layers; got {len(self.layer_kinds)}")
        if "sliding" in self.layer_kinds and self.window < 1:
            raise ValueError(f"window must be at least 1 where a layer slides; got {self.window}")
        if not self.query_scale:
            object.__setattr__(self, "query_scale", self.head_width**-0.5)

    @property
    def held_kv_heads(self) -> int:
        """KV heads in memory, copies among them."""
        return self.num_kv_heads * self.kv_copies

    @property
    def kinds(self) -> tuple[AttentionKind, ...]:
        """The attention kinds that occur, in a fixed order."""
        return tuple(k for k in ("full", "sliding") if k in self.layer_kinds)  # type: ignore[misc]

    @property
    def rotated(self) -> tuple[bool, ...]:
        """Whether each layer has a rotary embedding."""
        return tuple(i not in self.unrotated_layers for i in range(self.num_layers))

    @property
    def follows_length(self) -> bool:
        """Whether the rotary embedding of some layer depends on how long the text is."""
        kinds = {kind for kind, rotated in zip(self.layer_kinds, self.rotated, strict=True) if rotated}
        return any(self.rope_of(kind).follows_length for kind in kinds)

    def rope_of(self, kind: AttentionKind) -> RopeConfig:
        """Returns the rotary embedding of a layer kind."""
        return self.rope if kind == "full" else self.rope_sliding

    def window_of(self, kind: AttentionKind) -> int:
        """Returns the window of a layer kind in positions; 0 for none."""
        return self.window if kind == "sliding" else 0


ADDED = {
    "": {
        "unrotated_layers",
        "late_rounding",
        "pre_norms",
        "joint_qk_norm",
        "residual_scale",
        "logits_divisor",
        "kv_copies",
    },
    "rope": {"partial", "short_factors", "long_factors"},
}
"""Fields that are no part of a configuration's identity where they have their defaults, by what they belong to: without
them, the configuration was known by the others alone."""


def identity(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields that tell configurations apart, as JSON holds them, for hashes that outlive a version."""
    config = dataclasses.replace(config, kv_copies=1)  # Where a model is held says nothing of what it is.
    return _identity(config, ADDED[""]) | {
        name: _identity(getattr(config, name), ADDED["rope"]) for name in ("rope", "rope_sliding")
    }


def from_fields(fields: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration whose fields JSON holds; the inverse of `dataclasses.asdict`.

    Raises:
      KeyError, TypeError, ValueError: a field is missing, unknown or out of range.
    """
    ropes = {name: RopeConfig(**_with_tuples(fields[name])) for name in ("rope", "rope_sliding") if name in fields}
    return ModelConfig(**{**_with_tuples(fields), **ropes})


def _identity(part: Any, added: set[str]) -> dict[str, Any]:
    return {
        field.name: getattr(part, field.name)
        for field in dataclasses.fields(part)
        if field.name not in added or getattr(part, field.name) != field.default
    }


def _with_tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _check_rope(rope: RopeConfig, head_width: int) -> None:
    width = rope.rotated_width(head_width)
    if width < 2 or width > head_width or width % 2:
        raise ValueError(
            f"the rotated part of a head must be an even number of its {head_width} elements; "
            f"got {width} ({rope.partial} of them)"
        )
    if rope.follows_length and rope.original_positions < 1:
        raise ValueError(f"rope {rope.scaling} must have original_positions; got {rope.original_positions}")
    if rope.scaling == "dynamic" and width < 4:
        raise ValueError(f"rope dynamic needs at least 4 rotated elements a head; got {width}")
    for name in ("short_factors", "long_factors"):
        factors = getattr(rope, name)
        wanted = width // 2 if rope.scaling == "longrope" else 0
        if len(factors) != wanted or not all(factor > 0 for factor in factors):
            raise ValueError(f"{name} must be {wanted} numbers above 0 for rope {rope.scaling}; got {list(factors)}")
