"""Tiny random Hugging Face checkpoints of every family, made without torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from jax_smash.checkpoints.fit import DTYPES
from jax_smash.models.families import from_hf, tensor_map, tensor_shapes

SIZES = {
    "vocab_size": 101,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-3,  # Large enough for another value to show.
}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES}
QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **SIZES}
QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **SIZES, "head_dim": 24}
MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], **SIZES}
GEMMA2 = {
    "model_type": "gemma2",
    "architectures": ["Gemma2ForCausalLM"],
    **SIZES,
    "head_dim": 24,
    "query_pre_attn_scalar": 40,
    "sliding_window": 8,
}
GEMMA3 = {**GEMMA2, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 3}
SMOLLM3 = {
    "model_type": "smollm3",
    "architectures": ["SmolLM3ForCausalLM"],
    **SIZES,
    "num_hidden_layers": 4,
    "pad_token_id": 0,
}
PHI3 = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], **SIZES, "pad_token_id": 0}
OLMO2 = {"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], **SIZES}
OLMO3 = {"model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"], **SIZES, "sliding_window": 8}
GRANITE = {
    "model_type": "granite",
    "architectures": ["GraniteForCausalLM"],
    **SIZES,
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.22,
    "logits_scaling": 5.0,
}
GEMMA = {"model_type": "gemma", "architectures": ["GemmaForCausalLM"], **SIZES, "head_dim": 24}
LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,  # One frequency lies inside the band that is interpolated.
}


def factors(count: int, slope: float) -> list[float]:
    """Returns `longrope` factors: a stretch that grows from pair to pair."""
    return [round(1 + slope * i / count, 4) for i in range(count)]


CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama-mha-biases": {**LLAMA, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    "llama-3-tied": {
        **LLAMA,
        "tie_word_embeddings": True,
        "rope_theta": 5e5,
        "rope_scaling": {"rope_type": "llama3", **LLAMA3_ROPE},
    },
    "llama-linear": {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.5}},
    "llama-yarn": {
        **LLAMA,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e2,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 4.0,
            "beta_slow": 0.5,
        },
    },
    "qwen2": {**QWEN2, "rope_theta": 1e6},
    "qwen2-sliding-yarn": {
        **QWEN2,
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "attention_factor": 1.3,
            "truncate": False,
        },
    },
    "qwen3-tied": {**QWEN3, "tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e6}},
    "qwen3-biases": {**QWEN3, "attention_bias": True},
    "mistral-mqa": {**MISTRAL, "num_key_value_heads": 1, "sliding_window": 8},
    "mistral-full": {**MISTRAL, "sliding_window": None, "head_dim": 24},
    "gemma2": {**GEMMA2, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0},
    "gemma3": {
        **GEMMA3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "gemma3-old-fields": {
        **GEMMA3,
        "sliding_window_pattern": 2,
        "rope_theta": 5e5,
        "rope_local_base_freq": 2e3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "final_logit_softcapping": 5.0,
        "tie_word_embeddings": False,
    },
    "smollm3": {**SMOLLM3, "num_key_value_heads": 2},
    "smollm3-windows-biases": {
        **SMOLLM3,
        "no_rope_layers": [0, 1, 0, 1, 1],
        "use_sliding_window": True,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
        "tie_word_embeddings": False,
        "attention_bias": True,
        "mlp_bias": True,
        "rope_theta": 1e3,
    },
    "phi3": {**PHI3, "sliding_window": 8},
    "phi3-within": {
        **PHI3,
        "original_max_position_embeddings": 64,
        "rope_scaling": {"type": "longrope", "short_factor": factors(8, 0.5), "long_factor": factors(8, 3.0)},
    },
    "phi3-beyond": {
        **PHI3,
        "original_max_position_embeddings": 16,
        "rope_scaling": {"type": "longrope", "short_factor": factors(8, 0.5), "long_factor": factors(8, 3.0)},
    },
    "phi4-mini": {
        **PHI3,
        "tie_word_embeddings": True,
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 16,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": factors(6, 0.2),
            "long_factor": factors(6, 4.0),
            "attention_factor": 1.4,
        },
    },
    "olmo2-mha-biases": {**OLMO2, "num_key_value_heads": 4, "attention_bias": True, "rope_theta": 5e5},
    "olmo3": {
        **OLMO3,
        "num_hidden_layers": 4,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 4.0,
            "beta_slow": 0.5,
            "attention_factor": 1.2,
        },
    },
    "granite": {**GRANITE, "tie_word_embeddings": True},
    "granite-biases": {**GRANITE, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
    "gemma": {**GEMMA, "hidden_act": "gelu"},
    "llama-longrope": {
        **LLAMA,
        "rope_parameters": {
            "rope_type": "longrope",
            "factor": 4.0,
            "short_factor": factors(8, 0.5),
            "long_factor": factors(8, 3.0),
            "original_max_position_embeddings": 16,
        },
    },
    "llama-dynamic": {
        **LLAMA,
        "max_position_embeddings": 16,
        "rope_theta": 1e2,
        "rope_scaling": {"type": "dynamic", "factor": 3.0},
    },
}
"""Content of `config.json` of each variant: each family, and each thing that a family may switch on."""


def random_tensors(raw: dict[str, Any], *, seed: int = 0, dtype: str = "F32") -> dict[str, np.ndarray]:
    """Returns random weights by their checkpoint names, of sizes that make every one of them matter."""
    config = from_hf(raw)
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in tensor_shapes(tensor_map(config)).items():
        values = rng.standard_normal(shape, dtype=np.float32)
        if name.endswith("norm.weight"):
            values = np.clip(values / 4, -0.5, 0.5) + (0 if config.norm_offset else 1)
        elif name.endswith("bias"):
            values *= 0.3
        elif "embed_tokens" in name:
            values /= config.embedding_scale
        else:
            values *= 1.5 * shape[1] ** -0.5
        tensors[name] = values.astype(DTYPES[dtype])
    return tensors


def write_checkpoint(
    directory: Path, raw: dict[str, Any], *, seed: int = 0, dtype: str = "F32", shards: int = 1
) -> dict[str, np.ndarray]:
    """Writes a random checkpoint, single or sharded, and returns its tensors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw))
    tensors = random_tensors(raw, seed=seed, dtype=dtype)
    write_tensors(directory, tensors, shards=shards)
    return tensors


def write_tensors(directory: Path, tensors: dict[str, np.ndarray], *, shards: int = 1) -> None:
    """Writes safetensors files with the package of that name, for ours to be compared with."""
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        names = sorted(tensors)[i::shards]
        save_file({name: tensors[name] for name in names}, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


LARGE = {"vocab_size": 16_000, "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4}
"""A third of 200 MB is in the embedding, as in small real models: a second copy of it alone is already too much."""

LARGE_TENSORS = {"vocab_size": 8000, "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 2}
"""Two thirds of 310 MB are in tensors over 32 MB, whose memory goes back to the system as soon as it is free."""


def write_large_checkpoint(directory: Path, sizes: dict[str, int]) -> int:
    """Writes a checkpoint of repeated random weights and returns its size in bytes."""
    raw = {**LLAMA, "num_attention_heads": 16, "tie_word_embeddings": True, **sizes}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw))
    weights = np.random.default_rng(0).standard_normal(65_537, dtype=np.float32)
    shapes = tensor_shapes(tensor_map(from_hf(raw)))
    write_tensors(directory, {name: np.resize(weights, shape) for name, shape in shapes.items()})
    return sum(4 * int(np.prod(shape)) for shape in shapes.values())
