"""Phi-3, Phi-3.5 and Phi-4 (dense, text). Source: Abdin et al. 2024 (Phi-3, Phi-4); Microsoft 2025 (Phi-4-mini)."""

from collections.abc import Mapping
from typing import Any

from jax_smash.config import ModelConfig, RopeConfig
from jax_smash.models.families.family import Family, common_to_hf
from jax_smash.models.families.fields import Fields, as_number, common_from_hf
from jax_smash.models.families.rope_fields import rope_of_parameters, rope_to_hf

DEFAULTS = {
    "vocab_size": 32_064,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "bos_token_id": 1,
    "eos_token_id": 32_000,
    "pad_token_id": 32_000,
}

ROPES = ("default", "longrope")
OLD_LONGROPE = ("su", "yarn")
"""What early configurations of this family called `longrope`."""


def read(raw: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration of a Phi-3 or Phi-4 model.

    Only the first part of each head is rotated where `partial_rotary_factor` is less than 1. A `sliding_window` is one
    over all layers.
    """
    fields = Fields(raw, "phi3", DEFAULTS)
    sliding = fields.get("sliding_window") is not None
    kind_name = "sliding_attention" if sliding else "full_attention"
    fields.refuse("layer_types", [kind_name] * fields.integer("num_hidden_layers"))
    for bias in ("attention_bias", "mlp_bias"):
        fields.refuse(bias, False)
    rope = _rope(fields)
    return ModelConfig(
        **common_from_hf(fields),
        layer_kinds=("sliding" if sliding else "full",) * fields.integer("num_hidden_layers"),
        window=fields.integer("sliding_window") if sliding else 0,
        rope=rope,
        rope_sliding=rope,
    )


def _rope(fields: Fields) -> RopeConfig:
    parameters = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if not isinstance(parameters, Mapping):
        raise ValueError(f"rope parameters must be an object; got {parameters!r}")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    kind = "longrope" if kind in OLD_LONGROPE else kind
    if kind not in ROPES:
        raise ValueError(f"rope type {kind!r} is not supported for phi3; supported: {', '.join(ROPES)}")
    beside = {"partial_rotary_factor": fields.raw.get("partial_rotary_factor")}
    given = {name: value for name, value in parameters.items() if value is not None}
    return rope_of_parameters(
        {**beside, **given, "rope_type": kind}, fields, base=as_number("rope_theta", fields.get("rope_theta"))
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields of a Phi-3 configuration."""
    sliding = "sliding" in config.layer_kinds
    rope = config.rope_sliding if sliding else config.rope
    original = {"original_max_position_embeddings": rope.original_positions} if rope.original_positions else {}
    return {
        **common_to_hf(config),
        **original,
        "rope_parameters": rope_to_hf(rope),
        "sliding_window": config.window if sliding else None,
    }


PHI3 = Family("phi3", "Phi3ForCausalLM", read, write, fused=True)
