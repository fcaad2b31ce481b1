"""Llama 2 and 3.x. Source: Touvron et al. 2023; Llama Team 2024."""

from collections.abc import Mapping
from typing import Any

from jax_smash.config import ModelConfig
from jax_smash.models.families.family import Family, common_to_hf, layer_kinds_from_hf
from jax_smash.models.families.fields import Fields, common_from_hf
from jax_smash.models.families.rope_fields import rope_from_hf, rope_to_hf

DEFAULTS = {
    "vocab_size": 32_000,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def read(raw: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration of a Llama model."""
    fields = Fields(raw, "llama", DEFAULTS)
    kinds = layer_kinds_from_hf(fields, lambda layer: "full")
    if "sliding" in kinds:
        raise ValueError("layer type 'sliding_attention' is not supported for llama")
    return ModelConfig(
        **common_from_hf(fields),
        layer_kinds=kinds,
        rope=rope_from_hf(fields),
        qkv_bias=fields.flag("attention_bias"),
        output_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields of a Llama configuration."""
    return {
        **common_to_hf(config),
        "rope_parameters": rope_to_hf(config.rope),
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
    }


LLAMA = Family("llama", "LlamaForCausalLM", read, write)
