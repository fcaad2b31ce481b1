"""Real shapes, to measure speed and memory without a checkpoint. Sizes are those of the released `config.json`."""

from typing import Any

from jax_smash.config import ModelConfig
from jax_smash.models.families import from_hf

_LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA_3 = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 128_000,
    "eos_token_id": 128_001,
}
_QWEN = {"vocab_size": 151_936, "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 1e6}, "eos_token_id": 151_643}


def _sizes(layers: int, width: int, heads: int, mlp: int) -> dict[str, int]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": mlp,
    }


PRESETS: dict[str, dict[str, Any]] = {
    # 96M parameters: 75M are read a token, for the embedding is only looked up.
    "llama-100m": {"model_type": "llama", "num_key_value_heads": 5, **_sizes(12, 640, 10, 1728)},
    "llama-3.2-1b": {
        **_LLAMA_3,
        **_sizes(16, 2048, 32, 8192),
        "rope_parameters": _LLAMA_3_ROPE | {"factor": 32.0},
        "tie_word_embeddings": True,
    },
    "llama-3.2-3b": {
        **_LLAMA_3,
        **_sizes(28, 3072, 24, 8192),
        "rope_parameters": _LLAMA_3_ROPE | {"factor": 32.0},
        "tie_word_embeddings": True,
    },
    "llama-3.1-8b": {
        **_LLAMA_3,
        **_sizes(32, 4096, 32, 14_336),
        "rope_parameters": _LLAMA_3_ROPE | {"factor": 8.0},
    },
    "llama-3.1-70b": {
        **_LLAMA_3,
        **_sizes(80, 8192, 64, 28_672),
        "rope_parameters": _LLAMA_3_ROPE | {"factor": 8.0},
    },
    "llama-3.1-405b": {
        **_LLAMA_3,
        **_sizes(126, 16_384, 128, 53_248),
        "rope_parameters": _LLAMA_3_ROPE | {"factor": 8.0},
    },
    "qwen2.5-0.5b": {
        **_QWEN,
        **_sizes(24, 896, 14, 4864),
        "model_type": "qwen2",
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "qwen3-0.6b": {
        **_QWEN,
        **_sizes(28, 1024, 16, 3072),
        "model_type": "qwen3",
        "num_key_value_heads": 8,
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": True,
    },
    "mistral-7b": {
        **_sizes(32, 4096, 32, 14_336),
        "model_type": "mistral",
        "num_key_value_heads": 8,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
    },
    "smollm3-3b": {
        **_sizes(36, 2048, 16, 11_008),
        "model_type": "smollm3",
        "num_key_value_heads": 4,
        "max_position_embeddings": 65_536,
        "rope_theta": 5e6,
    },
    "phi-3-mini": {
        **_sizes(32, 3072, 32, 8192),
        "model_type": "phi3",
        "num_key_value_heads": 32,
        "sliding_window": 2047,
    },
    # Without the factors of `longrope`: they change no size, and no speed to speak of.
    "phi-4-mini": {
        **_sizes(32, 3072, 24, 8192),
        "model_type": "phi3",
        "vocab_size": 200_064,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "partial_rotary_factor": 0.75,
        "tie_word_embeddings": True,
    },
    "olmo-2-1b": {
        **_sizes(16, 2048, 16, 8192),
        "model_type": "olmo2",
        "vocab_size": 100_352,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5e5,
    },
    "olmo-3-7b": {
        **_sizes(32, 4096, 32, 11_008),
        "model_type": "olmo3",
        "vocab_size": 100_278,
        "max_position_embeddings": 65_536,
        "rms_norm_eps": 1e-6,
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192},
    },
    "granite-3.1-2b": {
        **_sizes(40, 2048, 32, 8192),
        "model_type": "granite",
        "vocab_size": 49_155,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e6,
        "tie_word_embeddings": True,
        "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
    },
    "gemma-2b": {"model_type": "gemma", "num_key_value_heads": 1, **_sizes(18, 2048, 8, 16_384)},
    "gemma-2-2b": {"model_type": "gemma2", **_sizes(26, 2304, 8, 9216)},
    "gemma-3-1b": {
        **_sizes(26, 1152, 4, 6912),
        "model_type": "gemma3_text",
        "vocab_size": 262_144,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32_768,
        "sliding_window": 512,
    },
}
"""Fields of `config.json` by the preset's name."""


def preset(name: str) -> ModelConfig:
    """Returns the configuration of a real shape.

    Raises:
      ValueError: there is no such preset.
    """
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; there are {', '.join(sorted(PRESETS))}")
    return from_hf(PRESETS[name])
