"""What the metadata of a GGUF file says of a model, as the content of a `config.json`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from jax_smash.checkpoints.gguf.file import GgufFile
from jax_smash.checkpoints.gguf.tokenizer import turn_ends
from jax_smash.config import RopeConfig
from jax_smash.models.families import FAMILIES
from jax_smash.models.families.rope_fields import rope_to_hf
from jax_smash.models.rope import frequencies

LLAMA3_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (LLAMA3_FACTORS, LONG_FACTORS, SHORT_FACTORS)
"""Tensors that say how frequencies are stretched; a `config.json` says it with numbers."""

GEMMA_27B = {"gemma2": 46, "gemma3": 62}
"""Layers of the models whose attention is scaled by D / N, not by the head width. The file does not say."""


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What one architecture's files have in common.

    Attributes:
      model_type: the Hugging Face family.
      fields: returns the fields of `config.json` beside those that all families have.
      interleaved: the rows of queries and keys alternate between the halves of their rotary pairs.
      norm_offset: what a stored norm holds beyond its weight.
    """

    model_type: str
    fields: Callable[[GgufFile], dict[str, Any]] = lambda file: {}
    interleaved: bool = False
    norm_offset: float = 0.0


def architecture_of(file: GgufFile) -> Architecture:
    """Returns what is known of a file's architecture.

    Raises:
      ValueError: it is not supported.
    """
    supported = {name: a for name, a in ARCHITECTURES.items() if a.model_type in FAMILIES}
    if file.architecture not in supported:
        raise ValueError(
            f"architecture {file.architecture!r} of {file.path} is not supported; supported: {', '.join(supported)}"
        )
    return supported[file.architecture]


def config_json(file: GgufFile) -> dict[str, Any]:
    """Returns the `config.json` that transformers would write for a GGUF file's model.

    Raises:
      ValueError: the architecture is not supported, a key is missing, or a value cannot be kept.
    """
    architecture = architecture_of(file)
    family = FAMILIES[architecture.model_type]
    heads = _number(file, "attention.head_count")
    raw = {
        "architectures": [family.architecture],
        "model_type": architecture.model_type,
        "vocab_size": _vocabulary(file),
        "num_hidden_layers": _number(file, "block_count"),
        "hidden_size": _number(file, "embedding_length"),
        "intermediate_size": _number(file, "feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": _number(file, "attention.head_count_kv", heads),
        "head_dim": _number(file, "attention.key_length", _number(file, "embedding_length") // heads),
        "max_position_embeddings": _number(file, "context_length"),
        "rms_norm_eps": _decimal(_number(file, "attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": _rope(file),
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _stops(file),
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id"),
    }
    return raw | architecture.fields(file)


def _biases(file: GgufFile) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in file.tensors}


def _llama(file: GgufFile) -> dict[str, Any]:
    return _biases(file) | {"mlp_bias": "blk.0.ffn_up.bias" in file.tensors}


def _gemma(file: GgufFile) -> dict[str, Any]:
    layers, heads = _number(file, "block_count"), _number(file, "attention.head_count")
    by_model = layers == GEMMA_27B.get(file.architecture)
    scale = _number(file, "embedding_length") // heads if by_model else _number(file, "attention.key_length")
    fields = {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scale,
        "attn_logit_softcapping": _softcap(file, "attn_logit_softcapping"),
        "final_logit_softcapping": _softcap(file, "final_logit_softcapping"),
    }
    return fields | _sliding(file, 2 if file.architecture == "gemma2" else 6)


def _gemma3(file: GgufFile) -> dict[str, Any]:
    return _gemma(file) | {"rope_parameters": _rope_by_kind(file, sliding_base=1e4)}


def _gemma1(file: GgufFile) -> dict[str, Any]:
    return {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}


def _smollm3(file: GgufFile) -> dict[str, Any]:
    # Every fourth layer goes without a rotary embedding. Files do not say so; no model of this family differs.
    rotated = [int((i + 1) % 4 != 0) for i in range(_number(file, "block_count"))]
    return _llama(file) | {"no_rope_layers": rotated, "use_sliding_window": False, "sliding_window": None}


def _phi3(file: GgufFile) -> dict[str, Any]:
    width = _number(file, "embedding_length") // _number(file, "attention.head_count")
    rope = _rope(file) | {"partial_rotary_factor": _number(file, "rope.dimension_count", width) / width}
    original = file.own("rope.scaling.original_context_length")
    if LONG_FACTORS in file.tensors:
        rope |= {
            "rope_type": "longrope",
            "long_factor": _decimals(file.decoded(LONG_FACTORS)),
            "short_factor": _decimals(file.decoded(SHORT_FACTORS)),
            "original_max_position_embeddings": original,
        }
        if (factor := file.own("rope.scaling.attn_factor")) is not None:
            rope["attention_factor"] = _decimal(factor)
    return {
        "rope_parameters": rope,
        "sliding_window": file.own("attention.sliding_window") or None,
        "original_max_position_embeddings": original,
    }


def _olmo2(file: GgufFile) -> dict[str, Any]:
    if not file.own("attention.sliding_window"):
        return _biases(file)
    # OLMo 3 differs from OLMo 2 by its sliding layers alone, and its files say `olmo2`.
    return _biases(file) | {
        "model_type": "olmo3",
        "architectures": ["Olmo3ForCausalLM"],
        "rope_parameters": _rope_by_kind(file, sliding_base=_decimal(file.own("rope.freq_base") or 1e4)),
        **_sliding(file, 4),
    }


def _granite(file: GgufFile) -> dict[str, Any]:
    return _llama(file) | {
        "attention_multiplier": _decimal(_number(file, "attention.scale")),
        "embedding_multiplier": _decimal(_number(file, "embedding_scale")),
        "residual_multiplier": _decimal(_number(file, "residual_scale")),
        "logits_scaling": _decimal(_number(file, "logit_scale")),
    }


ARCHITECTURES = {
    "llama": Architecture("llama", _llama, interleaved=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3", _biases),
    "gemma": Architecture("gemma", _gemma1, norm_offset=1.0),
    "gemma2": Architecture("gemma2", _gemma, norm_offset=1.0),
    "gemma3": Architecture("gemma3_text", _gemma3, norm_offset=1.0),
    "smollm3": Architecture("smollm3", _smollm3, interleaved=True),
    "phi3": Architecture("phi3", _phi3),
    "olmo2": Architecture("olmo2", _olmo2),
    "granite": Architecture("granite", _granite, interleaved=True),
}
"""What GGUF calls an architecture. Mistral's files say `llama`, whose layers they have."""


def _number(file: GgufFile, key: str, default: Any = None) -> Any:
    """Returns a number of the model's architecture.

    Raises:
      ValueError: it is missing and has no default, or layers differ in it.
    """
    value = file.own(key)
    if isinstance(value, list) and len(set(value)) == 1:
        value = value[0]
    value = default if value is None else value
    if value is None:
        raise ValueError(f"{file.path} must have {file.architecture}.{key}; it is missing")
    if not isinstance(value, int | float):
        raise ValueError(f"{file.architecture}.{key} of {file.path} must be a number; got {value!r}")
    return value


def _vocabulary(file: GgufFile) -> int:
    if "token_embd.weight" not in file.tensors:
        raise ValueError(f"the tensors in {file.path} do not fit its configuration: missing: token_embd.weight")
    return int(file.tensors["token_embd.weight"].shape[-1])


def _stops(file: GgufFile) -> list[int]:
    """Returns the tokens that end a text, a turn or a message, each once: those that are named, and by their texts."""
    named = [file.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    named += file.get("tokenizer.ggml.eos_token_ids") or []
    # Many files of chat models name the end of a text alone.
    return list(dict.fromkeys([token for token in named if token is not None] + turn_ends(file)))


def _sliding(file: GgufFile, period: int) -> dict[str, Any]:
    """Returns the window and each layer's kind: as the file says, or every `period`-th layer full."""
    window, pattern = file.own("attention.sliding_window"), file.own("attention.sliding_window_pattern")
    layers = _number(file, "block_count")
    if not window:
        return {"layer_types": ["full_attention"] * layers}
    if not isinstance(pattern, list):
        pattern = [bool((i + 1) % (pattern or period)) for i in range(layers)]
    return {
        "sliding_window": window,
        "layer_types": ["sliding_attention" if slides else "full_attention" for slides in pattern],
    }


def _softcap(file: GgufFile, key: str) -> float | None:
    value = file.own(key)
    return _decimal(value) if value else None


def _rope(file: GgufFile) -> dict[str, Any]:
    """Returns the rotary parameters of a file's full layers.

    Raises:
      ValueError: the scaling cannot be said in a `config.json`.
    """
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": _decimal(file.own("rope.freq_base") or 1e4)}
    kind, factor = file.own("rope.scaling.type"), file.own("rope.scaling.factor")
    if kind not in (None, "none", "linear", "yarn", "longrope"):
        raise ValueError(
            f"rope scaling {kind!r} of {file.path} is not supported; supported: none, linear, yarn, longrope"
        )
    if file.architecture != "phi3" and (kind == "longrope" or LONG_FACTORS in file.tensors):
        raise ValueError(f"rope scaling longrope of {file.path} is not supported for architecture {file.architecture}")
    if kind in ("linear", "yarn") and factor and factor != 1:
        rope |= {"rope_type": kind, "factor": _decimal(factor)}
    if rope["rope_type"] == "yarn":
        names = {
            "original_context_length": "original_max_position_embeddings",
            "yarn_beta_fast": "beta_fast",
            "yarn_beta_slow": "beta_slow",
            "yarn_attn_factor": "attention_factor",
        }
        values = {theirs: file.own(f"rope.scaling.{ours}") for ours, theirs in names.items()}
        rope |= {name: _decimal(value) for name, value in values.items() if value is not None}
        if "original_max_position_embeddings" in rope:
            rope["original_max_position_embeddings"] = int(rope["original_max_position_embeddings"])
    return rope | _llama3(file)


def _rope_by_kind(file: GgufFile, *, sliding_base: float) -> dict[str, Any]:
    """Returns the rotary parameters of full and of sliding layers, which are never stretched."""
    base = _decimal(file.own("rope.freq_base_swa") or sliding_base)
    return {"full_attention": _rope(file), "sliding_attention": {"rope_type": "default", "rope_theta": base}}


def _llama3(file: GgufFile) -> dict[str, Any]:
    """Returns the rule of Llama 3.1 where the file holds factors that follow from it; nothing where it holds none.

    The file holds the factors alone. All released models, 3.1 to 3.3, have the same rule but for its factor.

    Raises:
      ValueError: the factors follow from another rule.
    """
    if LLAMA3_FACTORS not in file.tensors:
        return {}
    stored = file.decoded(LLAMA3_FACTORS)
    plain = RopeConfig(base=_decimal(file.own("rope.freq_base") or 1e4))
    stretched = dataclasses.replace(
        plain, scaling="llama3", factor=_decimal(float(stored.max())), original_positions=8192, low=1.0, high=4.0
    )
    expected = frequencies(plain, 2 * stored.size) / frequencies(stretched, 2 * stored.size)
    if not np.allclose(stored, expected, rtol=1e-4):
        raise ValueError(f"{LLAMA3_FACTORS} in {file.path} must follow the rule of Llama 3.1; its factors are others")
    return rope_to_hf(stretched)


def _decimal(value: Any) -> float:
    """Returns the shortest decimal number that float32 rounds to a number, since people write decimals."""
    return float(np.format_float_positional(np.float32(value), unique=True, trim="0"))


def _decimals(values: np.ndarray) -> list[float]:
    return [_decimal(value) for value in values.tolist()]
