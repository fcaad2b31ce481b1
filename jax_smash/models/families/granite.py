"""Granite 3, dense: a Llama whose embeddings, scores, residuals and logits are scaled. Source: Granite Team 2024."""

from collections.abc import Mapping
from typing import Any

from jax_smash.config import ModelConfig
from jax_smash.models.families.family import Family, common_to_hf, layer_kinds_from_hf
from jax_smash.models.families.fields import Fields, common_from_hf
from jax_smash.models.families.rope_fields import rope_from_hf, rope_to_hf

SCALES = {
    "attention_multiplier": "query_scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logits_divisor",
}
"""Fields of `config.json` and ours."""

DEFAULTS = {
    "vocab_size": 32_000,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    **dict.fromkeys(SCALES, 1.0),
}


def read(raw: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration of a Granite model.

    Differs: a bfloat16 model rounds `embedding_multiplier` to bfloat16; that of every released model is a small whole
    number, which that leaves as it is.
    """
    fields = Fields(raw, "granite", DEFAULTS)
    kinds = layer_kinds_from_hf(fields, lambda layer: "full")
    if "sliding" in kinds:
        raise ValueError("layer type 'sliding_attention' is not supported for granite")
    scales: dict[str, Any] = {ours: fields.number(theirs) for theirs, ours in SCALES.items()}
    for theirs, ours in SCALES.items():
        if scales[ours] <= 0:
            raise ValueError(f"{theirs} must be above 0; got {fields.get(theirs)!r}")
    return ModelConfig(
        **common_from_hf(fields),
        **scales,
        layer_kinds=kinds,
        rope=rope_from_hf(fields),
        qkv_bias=fields.flag("attention_bias"),
        output_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields of a Granite configuration."""
    return {
        **common_to_hf(config),
        **{theirs: getattr(config, ours) for theirs, ours in SCALES.items()},
        "rope_parameters": rope_to_hf(config.rope),
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
    }


GRANITE = Family("granite", "GraniteForCausalLM", read, write)
