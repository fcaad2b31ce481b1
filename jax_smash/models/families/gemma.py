"""Gemma 1, Gemma 2 and Gemma 3 (the text model). Source: Gemma Team 2024, 2024, 2025."""

from collections.abc import Mapping
from typing import Any

from jax_smash.config import ModelConfig
from jax_smash.models.families.family import Family, common_to_hf, layer_kinds_from_hf, layer_kinds_to_hf
from jax_smash.models.families.fields import Fields, common_from_hf
from jax_smash.models.families.rope_fields import rope_by_kind, rope_from_hf, rope_to_hf

NORMS = {
    "attention_norm": "input_layernorm",
    "attention_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}

# Gemma's configurations on the hub leave out what is equal to these.
DEFAULTS = {
    "vocab_size": 256_000,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
DEFAULTS_1 = DEFAULTS | {"num_attention_heads": 16, "num_key_value_heads": 16, "hidden_act": "gelu_pytorch_tanh"}
DEFAULTS_2 = DEFAULTS | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
DEFAULTS_3 = DEFAULTS | {"vocab_size": 262_208, "max_position_embeddings": 131_072}

FULL_BASE, SLIDING_BASE = 1e6, 1e4
"""Rope bases of Gemma 3 where the configuration names none."""

GELU = {None: "gelu_pytorch_tanh", "gelu": "gelu_pytorch_tanh"}
"""What Gemma 1 means by an activation."""

_TEXT_PREFIXES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
_OTHER_PARTS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


def read_gemma(raw: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration of a Gemma 1 model. Its `gelu` means the approximation by tanh, as in transformers."""
    fields = Fields({**raw, "hidden_act": GELU.get(raw.get("hidden_act"), raw.get("hidden_act"))}, "gemma", DEFAULTS_1)
    fields.refuse("use_bidirectional_attention", False)
    fields.refuse("hidden_activation", *GELU.values(), *GELU)
    kinds = layer_kinds_from_hf(fields, lambda layer: "full")
    if "sliding" in kinds:
        raise ValueError("layer type 'sliding_attention' is not supported for gemma")
    return ModelConfig(
        **common_from_hf(fields),
        norm_offset=True,
        layer_kinds=kinds,
        rope=rope_from_hf(fields),
        qkv_bias=fields.flag("attention_bias"),
        output_bias=fields.flag("attention_bias"),
        embedding_scale=fields.integer("hidden_size") ** 0.5,
    )


def _common(fields: Fields) -> dict[str, Any]:
    fields.refuse("use_bidirectional_attention", False)
    return {
        **common_from_hf(fields, activation="hidden_activation"),
        "norm_offset": True,
        "post_norms": True,
        "qkv_bias": fields.flag("attention_bias"),
        "output_bias": fields.flag("attention_bias"),
        "query_scale": fields.integer("query_pre_attn_scalar") ** -0.5,
        "embedding_scale": fields.integer("hidden_size") ** 0.5,
        "final_softcap": fields.number("final_logit_softcapping"),
    }


def read_gemma2(raw: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration of a Gemma 2 model: every other layer slides, the first one too."""
    fields = Fields(raw, "gemma2", DEFAULTS_2)
    kinds = layer_kinds_from_hf(fields, lambda layer: "full" if layer % 2 else "sliding")
    rope = rope_from_hf(fields)
    return ModelConfig(
        **_common(fields),
        layer_kinds=kinds,
        window=fields.integer("sliding_window") if "sliding" in kinds else 0,
        rope=rope,
        rope_sliding=rope,
        attention_softcap=fields.number("attn_logit_softcapping"),
    )


def read_gemma3(raw: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration of a Gemma 3 text model: five layers slide, then one is full."""
    fields = Fields(raw, "gemma3_text", DEFAULTS_3)
    fields.refuse("attn_logit_softcapping")
    pattern = fields.get("sliding_window_pattern") or 6
    kinds = layer_kinds_from_hf(fields, lambda layer: "sliding" if (layer + 1) % pattern else "full")
    rope = rope_by_kind(
        fields,
        full_base=fields.number("rope_theta") or FULL_BASE,
        sliding_base=fields.number("rope_local_base_freq") or SLIDING_BASE,
    )
    return ModelConfig(
        **_common(fields),
        layer_kinds=kinds,
        window=fields.integer("sliding_window") if "sliding" in kinds else 0,
        rope=rope["full"],
        rope_sliding=rope["sliding"],
        qk_norm=True,
    )


def read_gemma3_multimodal(raw: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration of the text model inside a multimodal Gemma 3."""
    return read_gemma3(text_fields(raw))


def text_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `config.json` of the text model inside a multimodal Gemma 3.

    Raises:
      ValueError: there is no text model.
    """
    if not isinstance(raw.get("text_config"), Mapping):
        raise ValueError("config.json of a gemma3 model must have text_config; it is missing")
    shared = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "dtype", "torch_dtype")
    text = {**raw["text_config"], **{name: raw[name] for name in shared if raw.get(name) is not None}}
    return text | {"model_type": GEMMA3.model_type, "architectures": [GEMMA3.architecture]}


def text_tensor(name: str) -> str | None:
    """Returns a tensor's name in the text model alone; None for a tensor of the vision tower."""
    if name.startswith(_OTHER_PARTS):
        return None
    for prefix, replacement in _TEXT_PREFIXES.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def _write(config: ModelConfig) -> dict[str, Any]:
    return {
        **common_to_hf(config, activation="hidden_activation"),
        "attention_bias": config.qkv_bias,
        "query_pre_attn_scalar": round(config.query_scale**-2),
        "final_logit_softcapping": config.final_softcap or None,
        "sliding_window": config.window or DEFAULTS["sliding_window"],
        "layer_types": layer_kinds_to_hf(config),
    }


def write_gemma(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields of a Gemma 1 configuration."""
    return {
        **common_to_hf(config),
        "attention_bias": config.qkv_bias,
        "rope_parameters": rope_to_hf(config.rope),
    }


def write_gemma2(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields of a Gemma 2 configuration."""
    return _write(config) | {
        "attn_logit_softcapping": config.attention_softcap or None,
        "rope_parameters": rope_to_hf(config.rope if "full" in config.layer_kinds else config.rope_sliding),
    }


def write_gemma3(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields of a Gemma 3 text configuration."""
    return _write(config) | {
        "rope_parameters": {
            "full_attention": rope_to_hf(config.rope),
            "sliding_attention": rope_to_hf(config.rope_sliding),
        }
    }


GEMMA = Family("gemma", "GemmaForCausalLM", read_gemma, write_gemma)
GEMMA2 = Family("gemma2", "Gemma2ForCausalLM", read_gemma2, write_gemma2, NORMS)
GEMMA3 = Family("gemma3_text", "Gemma3ForCausalLM", read_gemma3, write_gemma3, NORMS, text_tensor)
GEMMA3_MULTIMODAL = Family(
    "gemma3", "Gemma3ForConditionalGeneration", read_gemma3_multimodal, write_gemma3, NORMS, text_tensor
)
