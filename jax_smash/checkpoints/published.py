"""What the published layouts of drafters have in common: the layer that `config.json` tells of, marks and vectors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_smash.checkpoints.described import take_trained_length
from jax_smash.models.families.rope_fields import rope_to_hf

MARK, LENGTH = "base_fingerprint", "trained_length"
"""Fields of our own beside the published ones: the target's weights, and the rows that a drafter was trained on."""


def layer_fields(config: Any) -> dict[str, Any]:
    """Returns the fields of `config.json` on the one layer of an EAGLE drafter, which are Llama's.

    Raises:
      ValueError: these fields cannot tell the layer's rotary embedding.
    """
    rope = config.rope
    if rope.partial != 1:
        raise ValueError(f"the published layout rotates whole heads; the drafter rotates {rope.partial:g} of each")
    parameters, positions = rope_to_hf(rope), config.max_positions
    if rope.scaling == "dynamic":
        # The published field is the context before it is stretched by the factor.
        positions = rope.original_positions
        if int(positions * rope.factor) != config.max_positions:
            raise ValueError(
                f"a dynamic rotary embedding makes a context of {positions} one of {int(positions * rope.factor)}; "
                f"the drafter has {config.max_positions}"
            )
    return {
        "num_hidden_layers": 1,
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_width,
        "intermediate_size": config.mlp_width,
        "max_position_embeddings": positions,
        "rms_norm_eps": config.norm_epsilon,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "rope_theta": parameters["rope_theta"],
        "rope_scaling": None if rope.scaling == "none" else parameters,
    }


def check_full_attention(raw: Mapping[str, Any]) -> None:
    """Refuses a drafter whose layer does not attend to all entries before its own: with a window, or both ways.

    Raises:
      ValueError: a field of `config.json` says so.
    """
    if raw.get("sliding_window") and raw.get("use_sliding_window", True):
        raise ValueError(f"a drafter with a window is not supported; got sliding_window {raw['sliding_window']}")
    if raw.get("is_causal", True) is not True:
        raise ValueError(f"is_causal must be true; got {raw['is_causal']!r}")


def check_activation(activation: str) -> None:
    """Refuses a drafter whose MLP has another activation than EAGLE's layers have; raises ValueError."""
    if activation != "silu":
        raise ValueError(f"a drafter's hidden_act must be silu; got {activation}")


def marks_of(drafter: Any) -> dict[str, Any]:
    """Returns the fields that say which weights a drafter is for and how long its rows were, where it knows."""
    told = {MARK: drafter.base_fingerprint or None, LENGTH: drafter.trained_length}
    return {name: value for name, value in told.items() if value is not None}


def read_marks(raw: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Returns what `marks_of` wrote, by the names of the modules' attributes.

    Raises:
      ValueError: a field is of the wrong type.
    """
    mark = raw.get(MARK) or ""
    if not isinstance(mark, str):
        raise ValueError(f"{file}: {MARK} must be a text; got {mark!r}")
    return {MARK: mark, LENGTH: take_trained_length(file, dict(raw))}


def target_vectors(vectors: Any, config: Any) -> np.ndarray:
    """Returns a target's vectors of tokens, `[V, D]`, that go into a drafter's file.

    Raises:
      ValueError: they are of another shape than the drafter's target has.
    """
    found, wanted = np.asarray(vectors), (config.vocab_size, config.d_model)
    if found.shape != wanted:
        raise ValueError(f"the target's vectors must be {list(wanted)}; got {list(found.shape)}")
    return found


def same_vectors(stored: np.ndarray, own: Any) -> bool:
    """Returns whether vectors in a drafter's file are the target's, as the file's dtype or bfloat16 rounds both."""
    own = np.asarray(own)
    rounded = [(stored.astype(dtype), own.astype(dtype)) for dtype in (stored.dtype, jnp.bfloat16)]
    return any(np.array_equal(theirs, ours) for theirs, ours in rounded)
