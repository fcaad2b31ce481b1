"""OLMo 2 and OLMo 3: norms behind attention and MLP alone, and over all heads' queries or keys at once.

Source: OLMo Team 2024, 2025.
"""

from collections.abc import Mapping
from typing import Any

from jax_smash.config import ModelConfig
from jax_smash.models.families.family import Family, common_to_hf, layer_kinds_from_hf, layer_kinds_to_hf
from jax_smash.models.families.fields import Fields, as_number, common_from_hf
from jax_smash.models.families.rope_fields import rope_by_kind, rope_from_hf, rope_to_hf

NORMS = {
    "attention_post_norm": "post_attention_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}

DEFAULTS = {
    "vocab_size": 50_304,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 50_279,
    "pad_token_id": 1,
}
BASE_3 = 5e5
"""Rope base of OLMo 3 where the configuration names none. `rope_theta` beside the rope parameters is that of full
layers alone, as in transformers."""

DEFAULTS_3 = DEFAULTS | {"sliding_window": 4096, "rope_theta": BASE_3}


def _common(fields: Fields) -> dict[str, Any]:
    fields.refuse("clip_qkv")
    return {
        **common_from_hf(fields),
        "late_rounding": True,
        "pre_norms": False,
        "post_norms": True,
        "joint_qk_norm": True,
        "qkv_bias": fields.flag("attention_bias"),
        "output_bias": fields.flag("attention_bias"),
    }


def read_olmo2(raw: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration of an OLMo 2 model."""
    fields = Fields(raw, "olmo2", DEFAULTS)
    kinds = layer_kinds_from_hf(fields, lambda layer: "full")
    if "sliding" in kinds:
        raise ValueError("layer type 'sliding_attention' is not supported for olmo2")
    return ModelConfig(**_common(fields), layer_kinds=kinds, rope=rope_from_hf(fields))


def read_olmo3(raw: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration of an OLMo 3 model: three layers slide, then one is full."""
    fields = Fields(raw, "olmo3", DEFAULTS_3)
    kinds = layer_kinds_from_hf(fields, lambda layer: "sliding" if (layer + 1) % 4 else "full")
    full_base = as_number("rope_theta", fields.get("rope_theta") or BASE_3)
    rope = rope_by_kind(fields, full_base=full_base, sliding_base=BASE_3)
    return ModelConfig(
        **_common(fields),
        layer_kinds=kinds,
        window=fields.integer("sliding_window") if "sliding" in kinds else 0,
        rope=rope["full"],
        rope_sliding=rope["sliding"],
    )


def write_olmo2(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields of an OLMo 2 configuration."""
    return {
        **common_to_hf(config),
        "rope_parameters": rope_to_hf(config.rope),
        "attention_bias": config.qkv_bias,
    }


def write_olmo3(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields of an OLMo 3 configuration."""
    return {
        **common_to_hf(config),
        "attention_bias": config.qkv_bias,
        "sliding_window": config.window or DEFAULTS_3["sliding_window"],
        "layer_types": layer_kinds_to_hf(config),
        "rope_parameters": {
            "full_attention": rope_to_hf(config.rope),
            "sliding_attention": rope_to_hf(config.rope_sliding),
        },
    }


OLMO2 = Family("olmo2", "Olmo2ForCausalLM", read_olmo2, write_olmo2, NORMS)
OLMO3 = Family("olmo3", "Olmo3ForCausalLM", read_olmo3, write_olmo3, NORMS)
