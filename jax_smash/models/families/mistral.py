"""Mistral, with a sliding window over all layers or none. Source: Jiang et al. 2023."""

from collections.abc import Mapping
from typing import Any

from jax_smash.config import ModelConfig
from jax_smash.models.families.family import Family, common_to_hf
from jax_smash.models.families.fields import Fields, common_from_hf
from jax_smash.models.families.rope_fields import rope_from_hf, rope_to_hf

DEFAULTS = {
    "vocab_size": 32_000,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 4096 * 32,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sliding_window": 4096,
}


def read(raw: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration of a Mistral model. A null `sliding_window` means that no layer slides."""
    fields = Fields(raw, "mistral", DEFAULTS)
    sliding = fields.get("sliding_window") is not None
    kind_name = "sliding_attention" if sliding else "full_attention"
    fields.refuse("layer_types", [kind_name] * fields.integer("num_hidden_layers"))
    for bias in ("attention_bias", "mlp_bias"):
        fields.refuse(bias, False)
    rope = rope_from_hf(fields)
    return ModelConfig(
        **common_from_hf(fields),
        layer_kinds=("sliding" if sliding else "full",) * fields.integer("num_hidden_layers"),
        window=fields.integer("sliding_window") if sliding else 0,
        rope=rope,
        rope_sliding=rope,
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields of a Mistral configuration."""
    sliding = "sliding" in config.layer_kinds
    return {
        **common_to_hf(config),
        "rope_parameters": rope_to_hf(config.rope_sliding if sliding else config.rope),
        "sliding_window": config.window if sliding else None,
    }


MISTRAL = Family("mistral", "MistralForCausalLM", read, write)
