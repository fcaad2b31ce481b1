"""SmolLM3: some layers have no rotary embedding. Source: Yang et al. 2025 (RoPE to NoPE and Back Again)."""

from collections.abc import Mapping
from typing import Any

from jax_smash.config import ModelConfig
from jax_smash.models.families.family import Family, common_to_hf, layer_kinds_from_hf, layer_kinds_to_hf
from jax_smash.models.families.fields import Fields, common_from_hf
from jax_smash.models.families.rope_fields import rope_from_hf, rope_to_hf

DEFAULTS = {
    "vocab_size": 128_256,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 2e6,
    "tie_word_embeddings": True,
    "bos_token_id": 128_000,
    "eos_token_id": 128_001,
    "pad_token_id": 128_004,
    "no_rope_layer_interval": 4,
}


def read(raw: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration of a SmolLM3 model.

    `no_rope_layers` has a 1 for a layer with a rotary embedding and a 0 for one without; by default every fourth has
    none. Where windows are in use, the layers without slide.
    """
    fields = Fields(raw, "smollm3", DEFAULTS)
    rotated = _rotated(fields)
    sliding = fields.flag("use_sliding_window") and fields.get("sliding_window") is not None
    kinds = layer_kinds_from_hf(fields, lambda i: "sliding" if sliding and not rotated[i] else "full")
    if "sliding" in kinds and not sliding:
        raise ValueError("layer type 'sliding_attention' needs use_sliding_window and sliding_window")
    rope = rope_from_hf(fields)
    return ModelConfig(
        **common_from_hf(fields),
        layer_kinds=kinds,
        window=fields.integer("sliding_window") if "sliding" in kinds else 0,
        rope=rope,
        rope_sliding=rope,
        unrotated_layers=tuple(i for i, on in enumerate(rotated) if not on),
        qkv_bias=fields.flag("attention_bias"),
        output_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
    )


def _rotated(fields: Fields) -> list[bool]:
    layers, given = fields.integer("num_hidden_layers"), fields.get("no_rope_layers")
    if given is None:
        interval = fields.integer("no_rope_layer_interval")
        return [(i + 1) % interval != 0 for i in range(layers)]
    if not isinstance(given, list) or len(given) < layers or any(on not in (0, 1) for on in given):
        raise ValueError(f"no_rope_layers must be a 0 or 1 for each of {layers} layers; got {given!r}")
    return [bool(on) for on in given[:layers]]


def write(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields of a SmolLM3 configuration."""
    sliding = "sliding" in config.layer_kinds
    full_rotates = any(on and kind == "full" for on, kind in zip(config.rotated, config.layer_kinds, strict=True))
    return {
        **common_to_hf(config),
        "rope_parameters": rope_to_hf(config.rope if full_rotates else config.rope_sliding),
        "no_rope_layers": [int(on) for on in config.rotated],
        "use_sliding_window": sliding,
        "sliding_window": config.window if sliding else None,
        "layer_types": layer_kinds_to_hf(config),
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
    }


SMOLLM3 = Family("smollm3", "SmolLM3ForCausalLM", read, write)
