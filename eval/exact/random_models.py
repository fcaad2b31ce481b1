"""Small random models of every supported family, as a Hugging Face `config.json` describes them."""

from collections.abc import Callable
from typing import Any

import numpy as np

SPREAD = 0.25
"""Standard deviation of random weights: wide enough that greedy text varies instead of repeating one token."""

POSITIONS = 256
FULL, SLIDING = "full_attention", "sliding_attention"


def random_fields(family: str, rng: np.random.Generator) -> dict[str, Any]:
    """Returns the fields of a random configuration of a family; the same generator gives the same fields.

    Raises:
      ValueError: the family is not known here.
    """
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}; got {family!r}")
    kv_heads = _pick(rng, 1, 2, 3)
    layers = int(rng.integers(1, 4))
    common = {
        "vocab_size": int(rng.integers(50, 400)),
        "hidden_size": _pick(rng, 48, 96),  # Divisible by every number of heads below, which some families demand.
        "intermediate_size": _pick(rng, 40, 64, 96),
        "num_hidden_layers": layers,
        "num_attention_heads": kv_heads * _pick(rng, 1, 2, 4),
        "num_key_value_heads": kv_heads,
        "head_dim": _pick(rng, 8, 16, 24),
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": _pick(rng, 1e-6, 1e-5),
        "tie_word_embeddings": _flag(rng),
        "initializer_range": SPREAD,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    fields = {"model_type": family} | common | FAMILIES[family](rng, layers)
    return {name: value for name, value in fields.items() if (name, value) != ("head_dim", None)}


def _pick(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _flag(rng: np.random.Generator) -> bool:
    return bool(rng.integers(2))


def _plain_rope(rng: np.random.Generator) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": _pick(rng, 1e4, 1e6)}


def _rope(rng: np.random.Generator) -> dict[str, Any]:
    """Returns one of the rotary embeddings, with an original context that the prompts outgrow."""
    base = {"rope_theta": _pick(rng, 1e4, 5e5)}
    kind = _pick(rng, "default", "linear", "llama3", "yarn")
    more = {
        "default": {},
        "linear": {"factor": 2.0},
        "llama3": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    }
    return {"rope_type": kind} | base | more[kind]


def _kinds(rng: np.random.Generator, layers: int) -> list[str]:
    return [_pick(rng, FULL, SLIDING) for _ in range(layers)]


def _llama(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    return {"rope_parameters": _rope(rng), "attention_bias": _flag(rng), "mlp_bias": _flag(rng)}


def _mistral(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    return {"rope_parameters": _plain_rope(rng), "sliding_window": _pick(rng, None, 8, 20)}


def _qwen2(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    # Qwen 2 has no field for the head width: it divides the model's width.
    heads = _pick(rng, 2, 4)
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": _pick(rng, 1, 2),
        "head_dim": None,
        "hidden_size": heads * _pick(rng, 8, 16),
        "rope_parameters": _rope(rng),
    } | _qwen_window(rng, layers)


def _qwen3(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    return {"rope_parameters": _rope(rng), "attention_bias": _flag(rng)} | _qwen_window(rng, layers)


def _qwen_window(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    if not _flag(rng):
        return {"use_sliding_window": False}
    return {"use_sliding_window": True, "sliding_window": _pick(rng, 8, 20), "layer_types": _kinds(rng, layers)}


def _gemma(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    return {
        "sliding_window": _pick(rng, 8, 20),
        "layer_types": _kinds(rng, layers),
        "query_pre_attn_scalar": _pick(rng, 8, 24, 32),
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": _pick(rng, None, 30.0),
        "attn_logit_softcapping": _pick(rng, None, 50.0),
    }


def _gemma2(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    return _gemma(rng, layers) | {"rope_parameters": _plain_rope(rng)}


def _gemma3(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    full = {"rope_type": "linear", "factor": 8.0} if _flag(rng) else {"rope_type": "default"}
    rope = {FULL: full | {"rope_theta": 1e6}, SLIDING: {"rope_type": "default", "rope_theta": 1e4}}
    return _gemma(rng, layers) | {"rope_parameters": rope, "attn_logit_softcapping": None}


def _more_rope(rng: np.random.Generator) -> dict[str, Any]:
    """Returns one of the rotary embeddings; that of `dynamic` has a context that no text here outgrows."""
    return {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0} if rng.integers(4) == 0 else _rope(rng)


def _smollm3(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    return {
        "no_rope_layers": [int(rng.integers(2)) for _ in range(layers)],
        "rope_parameters": _more_rope(rng),
        "attention_bias": _flag(rng),
        "mlp_bias": _flag(rng),
    } | _qwen_window(rng, layers)


def _phi3(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    # No field for the head width either. Texts of `longrope` are all within the original context or all beyond it:
    # where one crosses it, transformers changes its wavelengths on the way.
    heads, width, partial = _pick(rng, 2, 4), _pick(rng, 8, 16), _pick(rng, 1.0, 0.75)
    pairs = int(width * partial) // 2
    original = _pick(rng, 1, POSITIONS)
    long = {
        "rope_type": "longrope",
        "short_factor": [1 + 0.1 * i for i in range(pairs)],
        "long_factor": [1.5 + 0.7 * i for i in range(pairs)],
        "attention_factor": _pick(rng, 1.0, 1.2),
        "original_max_position_embeddings": original,
    }
    rope = long if _flag(rng) else {"rope_type": "default"}
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": _pick(rng, 1, 2),
        "head_dim": None,
        "hidden_size": heads * width,
        "original_max_position_embeddings": original,
        "rope_parameters": rope | {"rope_theta": 1e4, "partial_rotary_factor": partial},
        "sliding_window": _pick(rng, None, 8, 20),
    }


def _olmo2(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    return {"rope_parameters": _more_rope(rng), "attention_bias": _flag(rng)}


def _olmo3(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    return {
        "rope_parameters": {FULL: _rope(rng), SLIDING: _plain_rope(rng)},
        "attention_bias": _flag(rng),
        "sliding_window": _pick(rng, 8, 20),
        "layer_types": _kinds(rng, layers),
    }


def _granite(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    return {
        "rope_parameters": _more_rope(rng),
        "attention_bias": _flag(rng),
        "mlp_bias": _flag(rng),
        "embedding_multiplier": _pick(rng, 1.0, 6.0),
        "attention_multiplier": _pick(rng, 0.1, 0.3),
        "residual_multiplier": _pick(rng, 0.22, 1.0),
        "logits_scaling": _pick(rng, 3.0, 8.0),
    }


def _gemma1(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    return {"rope_parameters": _more_rope(rng), "attention_bias": _flag(rng), "hidden_act": "gelu_pytorch_tanh"}


FAMILIES: dict[str, Callable[[np.random.Generator, int], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "smollm3": _smollm3,
    "phi3": _phi3,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "granite": _granite,
    "gemma": _gemma1,
}
"""What each family adds to the fields that all share."""
