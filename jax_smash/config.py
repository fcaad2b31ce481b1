"""The configuration that one transformer needs to be any of the supported families."""

import dataclasses
from typing import Literal

AttentionKind = Literal["full", "sliding"]
Activation = Literal["silu", "gelu_tanh"]


@dataclasses.dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding of one attention kind.

    Attributes:
      base: the wavelength base (`rope_theta`).
      scaling: how wavelengths are stretched for long contexts.
      factor: stretch; 1 where `scaling` is `none`.
      original_positions: context length the model was first trained for (`llama3`, `yarn`).
      low, high: the band over which interpolation fades in: `low_freq_factor`, `high_freq_factor` (`llama3`), or
        `beta_slow`, `beta_fast` (`yarn`), in rotations over the original context.
      attention_factor: multiplies cos and sin (`yarn`).
      truncate: round the band's edges to whole dimensions (`yarn`).
    """

    base: float = 10_000.0
    scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    factor: float = 1.0
    original_positions: int = 0
    low: float = 1.0
    high: float = 4.0
    attention_factor: float = 1.0
    truncate: bool = True


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
      activation: of the gated MLP.
      norm_epsilon: of every RMSNorm.
      norm_offset: RMSNorm scales by 1 + w instead of w.
      post_norms: a norm also after attention and after the MLP, before each is added to the residual.
      qk_norm: RMSNorm over each query and key head before the rotary embedding.
      qkv_bias, output_bias, mlp_bias: biases of the projections.
      query_scale: multiplies attention scores.
      embedding_scale: multiplies token embeddings, rounded to the weights' dtype.
      attention_softcap, final_softcap: cap · tanh(x / cap); 0 for none.
      tied_head: the output head is the embedding matrix.
      bos_token, eos_tokens, pad_token: ids; None or empty where the model has none.
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
    activation: Activation = "silu"
    norm_epsilon: float = 1e-6
    norm_offset: bool = False
    post_norms: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    query_scale: float = 0.0
    embedding_scale: float = 1.0
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    tied_head: bool = False
    bos_token: int | None = None
    eos_tokens: tuple[int, ...] = ()
    pad_token: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "num_layers", "d_model", "num_heads", "num_kv_heads", "head_width", "mlp_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads; got {self.num_heads} and {self.num_kv_heads}"
            )
        if self.head_width % 2:
            raise ValueError(f"head_width must be even for a rotary embedding; got {self.head_width}")
        if len(self.layer_kinds) != self.num_layers:
            raise ValueError(f"layer_kinds must name {self.num_layers} layers; got {len(self.layer_kinds)}")
        if "sliding" in self.layer_kinds and self.window < 1:
            raise ValueError(f"window must be at least 1 where a layer slides; got {self.window}")
        if not self.query_scale:
            object.__setattr__(self, "query_scale", self.head_width**-0.5)

    @property
    def kinds(self) -> tuple[AttentionKind, ...]:
        """The attention kinds that occur, in a fixed order."""
        return tuple(k for k in ("full", "sliding") if k in self.layer_kinds)  # type: ignore[misc]

    def rope_of(self, kind: AttentionKind) -> RopeConfig:
        """Returns the rotary embedding of a layer kind."""
        return self.rope if kind == "full" else self.rope_sliding

    def window_of(self, kind: AttentionKind) -> int:
        """Returns the window of a layer kind in positions; 0 for none."""
        return self.window if kind == "sliding" else 0
