"""Qwen2, Qwen2.5 and Qwen3, dense. Source: Yang et al. 2024; Qwen Team 2025."""

import functools
from collections.abc import Mapping
from typing import Any

from jax_smash.config import ModelConfig
from jax_smash.models.families.family import Family, common_to_hf, layer_kinds_from_hf, layer_kinds_to_hf
from jax_smash.models.families.fields import Fields, common_from_hf
from jax_smash.models.families.rope_fields import rope_from_hf, rope_to_hf

DEFAULTS = {
    "vocab_size": 151_936,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


def read(raw: Mapping[str, Any], *, family: str) -> ModelConfig:
    """Returns the configuration of a Qwen model.

    Qwen2 always has biases on queries, keys and values, and none on the output; Qwen3 has norms on queries and keys,
    and biases where `attention_bias` says so.
    """
    qwen3 = family == "qwen3"
    fields = Fields(raw, family, DEFAULTS | {"head_dim": 128} if qwen3 else DEFAULTS)
    sliding = fields.flag("use_sliding_window") and fields.get("sliding_window") is not None
    first_sliding = fields.get("max_window_layers")
    kinds = layer_kinds_from_hf(fields, lambda i: "sliding" if sliding and i >= first_sliding else "full")
    if "sliding" in kinds and not sliding:
        raise ValueError("layer type 'sliding_attention' needs use_sliding_window and sliding_window")
    rope = rope_from_hf(fields)
    return ModelConfig(
        **common_from_hf(fields),
        layer_kinds=kinds,
        window=fields.integer("sliding_window") if "sliding" in kinds else 0,
        rope=rope,
        rope_sliding=rope,
        qk_norm=qwen3,
        qkv_bias=fields.flag("attention_bias") if qwen3 else True,
        output_bias=fields.flag("attention_bias") and qwen3,
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields of a Qwen configuration."""
    sliding = "sliding" in config.layer_kinds
    fields = {
        **common_to_hf(config),
        "rope_parameters": rope_to_hf(config.rope if "full" in config.layer_kinds else config.rope_sliding),
        "use_sliding_window": sliding,
        "sliding_window": config.window if sliding else None,
        "layer_types": layer_kinds_to_hf(config),
    }
    return fields | {"attention_bias": config.qkv_bias} if config.qk_norm else fields


QWEN2 = Family("qwen2", "Qwen2ForCausalLM", functools.partial(read, family="qwen2"), write)
QWEN3 = Family("qwen3", "Qwen3ForCausalLM", functools.partial(read, family="qwen3"), write)
