"""GGUF files of tiny checkpoints, written with the package's own writer and its own tables of names."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np

from jax_smash.models.families import from_hf

ARCHITECTURES = {"gemma3_text": "gemma3", "mistral": "llama", "olmo3": "olmo2"}
"""What GGUF calls a family, where it is not `model_type`."""

INTERLEAVED = ("llama", "smollm3", "granite")
OFFSET = ("gemma", "gemma2", "gemma3")


def architecture(raw: dict[str, Any]) -> str:
    """Returns what GGUF calls the family of a `config.json`."""
    return ARCHITECTURES.get(raw["model_type"], raw["model_type"])


def write_gguf(
    path: Path,
    raw: dict[str, Any],
    tensors: dict[str, np.ndarray],
    *,
    tokenizer: Any = None,
    splits: str = "gpt-2",
    renamed: Mapping[str, str] = MappingProxyType({}),
    quantised: gguf.GGMLQuantizationType | None = None,
    more: dict[str, Any] | None = None,
    tokenizer_fields: dict[str, Any] | None = None,
    endianess: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE,
    parts: int = 1,
) -> Path:
    """Writes a checkpoint as a GGUF file, as llama.cpp's converter would: names, order of rows, offsets, metadata.

    Args:
      path: of the file.
      raw: content of `config.json`.
      tensors: by their names in a Hugging Face checkpoint.
      tokenizer: byte-level BPE, written with it.
      splits: name of its rule to split text by.
      renamed: other texts of some of its tokens, which no merges make then.
      quantised: type of the matrices; None for float32.
      more: metadata of the architecture beside what is written anyway; None for a value leaves its key out.
      tokenizer_fields: metadata of the tokenizer beside what is written anyway.
      endianess: byte order.
      parts: files to split the tensors over.

    Returns:
      The first file.
    """
    config, name = from_hf(raw), architecture(raw)
    split = {"split_max_tensors": -(-len(tensors) // parts)} if parts > 1 else {}
    writer = gguf.GGUFWriter(path, name, endianess=endianess, **split)
    rope = config.rope if "full" in config.layer_kinds else config.rope_sliding
    values = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_positions,
        "embedding_length": config.d_model,
        "block_count": config.num_layers,
        "feed_forward_length": config.mlp_width,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_width,
        "attention.value_length": config.head_width,
        "attention.layer_norm_rms_epsilon": config.norm_epsilon,
        "rope.dimension_count": rope.rotated_width(config.head_width),
        "rope.freq_base": rope.base,
        **_optional(config, rope),
        **(more or {}),
    }
    for key, value in values.items():
        if value is not None:
            _add(writer, f"{name}.{key}", value)
    if tokenizer is not None:
        _add_tokenizer(writer, tokenizer, splits, renamed)
    for key, value in (tokenizer_fields or {}).items():
        _add(writer, key, value)
    factors = {"rope_factors_short.weight": rope.short_factors, "rope_factors_long.weight": rope.long_factors}
    for theirs, values in factors.items():
        if values:
            writer.add_tensor(theirs, np.array(values, np.float32))
    for theirs, tensor in gguf_tensors(raw, tensors).items():
        if quantised is not None and tensor.ndim > 1:
            writer.add_tensor(theirs, gguf.quantize(tensor, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(theirs, tensor)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if parts == 1 else path.with_name(f"{path.stem}-00001-of-{parts:05}.gguf")


def gguf_tensors(raw: dict[str, Any], tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a checkpoint's tensors as the file holds them, by the names that the package's table gives."""
    config, name = from_hf(raw), architecture(raw)
    kind = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == name)
    table = gguf.get_tensor_name_map(kind, config.num_layers)
    written = {}
    for ours, tensor in tensors.items():
        if name in INTERLEAVED and ".q_proj." in ours:
            tensor = interleave(tensor, config.num_heads)
        if name in INTERLEAVED and ".k_proj." in ours:
            tensor = interleave(tensor, config.num_kv_heads)
        if name in OFFSET and ours.endswith("norm.weight"):
            tensor = tensor + 1
        written[table.get_name(ours, try_suffixes=(".weight", ".bias")) or ours] = np.ascontiguousarray(
            tensor, np.float32
        )
    return written


def interleave(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Returns the rows of every head with the two halves in turn: first of one, first of the other, and so on."""
    halves = tensor.reshape(heads, 2, -1, *tensor.shape[1:])
    return np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(tensor.shape)


def _optional(config: Any, rope: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if config.window:
        values["attention.sliding_window"] = config.window
        values["attention.sliding_window_pattern"] = [kind == "sliding" for kind in config.layer_kinds]
    if config.attention_softcap:
        values["attn_logit_softcapping"] = config.attention_softcap
    if config.final_softcap:
        values["final_logit_softcapping"] = config.final_softcap
    if rope.scaling in ("linear", "yarn"):
        values |= {"rope.scaling.type": rope.scaling, "rope.scaling.factor": rope.factor}
    if rope.scaling == "longrope":
        values |= {
            "rope.scaling.original_context_length": rope.original_positions,
            "rope.scaling.attn_factor": rope.attention_factor,
        }
    if config.family == "granite":
        values |= {
            "attention.scale": config.query_scale,
            "embedding_scale": config.embedding_scale,
            "residual_scale": config.residual_scale,
            "logit_scale": config.logits_divisor,
        }
    if rope.scaling == "yarn":
        values |= {
            "rope.scaling.original_context_length": rope.original_positions,
            "rope.scaling.yarn_attn_factor": rope.attention_factor,
            "rope.scaling.yarn_beta_fast": rope.high,
            "rope.scaling.yarn_beta_slow": rope.low,
        }
    return values


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_float32(key, value)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Any, splits: str, renamed: Mapping[str, str]) -> None:
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    special = set(tokenizer.all_special_tokens)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splits)
    writer.add_token_list([renamed.get(token, token) for token in tokens])
    writer.add_token_types([gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    writer.add_token_merges([merge for merge in merges if merge.replace(" ", "") not in renamed])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:")
