"""Rotary embeddings as a `config.json` describes them, in the old fields and the new."""

import math
from collections.abc import Mapping
from typing import Any

from jax_smash.config import RopeConfig
from jax_smash.models.families.fields import Fields, as_number

SCALINGS = {"default": "none", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}
"""Hugging Face rope types and ours."""

_KNOWN = {
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "partial_rotary_factor",
    "finetuned",
}


def rope_from_hf(fields: Fields) -> RopeConfig:
    """Returns the rotary embedding of a family that has one for all layers.

    `rope_scaling`, the older field, wins over `rope_parameters`, as it does in transformers.
    """
    fields.refuse("partial_rotary_factor", 1, 1.0)
    parameters = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    return rope_of_parameters(parameters, fields, base=as_number("rope_theta", fields.raw.get("rope_theta") or 1e4))


def rope_of_parameters(parameters: Any, fields: Fields, *, base: float) -> RopeConfig:
    """Returns the rotary embedding that one set of rope parameters describes.

    Args:
      parameters: `rope_type` and what belongs to it.
      fields: of the whole configuration, for the context lengths.
      base: where the parameters name none.

    Raises:
      ValueError: the type or a parameter is not supported.
    """
    if not isinstance(parameters, Mapping):
        raise ValueError(f"rope parameters must be an object; got {parameters!r}")
    unknown = sorted(k for k, v in parameters.items() if k not in _KNOWN and v is not None)
    if unknown:
        raise ValueError(f"rope parameter {unknown[0]}={parameters[unknown[0]]!r} is not supported")
    if parameters.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise ValueError(f"partial_rotary_factor={parameters['partial_rotary_factor']!r} is not supported")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in SCALINGS:
        raise ValueError(f"rope type {kind!r} is not supported; supported: {', '.join(SCALINGS)}")

    def number(name: str, default: float | None = None) -> float:
        value = parameters.get(name)
        if value is None and default is None:
            raise ValueError(f"rope type {kind} must have {name}; it is missing")
        return as_number(name, default if value is None else value)

    base = number("rope_theta", base)
    if kind == "default":
        return RopeConfig(base=base)
    if kind == "linear":
        return RopeConfig(base=base, scaling="linear", factor=number("factor"))
    # A few writers put the original length beside the rope parameters; there it wins.
    original = fields.raw.get("original_max_position_embeddings")
    if original is None:
        original = number("original_max_position_embeddings", float(fields.integer("max_position_embeddings")))
    if kind == "llama3":
        return RopeConfig(
            base=base,
            scaling="llama3",
            factor=number("factor"),
            original_positions=int(original),
            low=number("low_freq_factor"),
            high=number("high_freq_factor"),
        )
    factor = number("factor", fields.integer("max_position_embeddings") / int(original))
    return RopeConfig(
        base=base,
        scaling="yarn",
        factor=factor,
        original_positions=int(original),
        low=number("beta_slow", 1.0),
        high=number("beta_fast", 32.0),
        attention_factor=number("attention_factor", _yarn_attention(parameters, factor)),
        truncate=bool(parameters.get("truncate", True)),
    )


def rope_to_hf(rope: RopeConfig) -> dict[str, Any]:
    """Returns the rope parameters of a rotary embedding; the inverse of `rope_of_parameters`."""
    kind = next(theirs for theirs, ours in SCALINGS.items() if ours == rope.scaling)
    parameters: dict[str, Any] = {"rope_type": kind, "rope_theta": rope.base}
    if rope.scaling != "none":
        parameters["factor"] = rope.factor
    if rope.scaling == "llama3":
        parameters |= {"low_freq_factor": rope.low, "high_freq_factor": rope.high}
    if rope.scaling == "yarn":
        parameters |= {
            "beta_slow": rope.low,
            "beta_fast": rope.high,
            "attention_factor": rope.attention_factor,
            "truncate": rope.truncate,
        }
    if rope.original_positions:
        parameters["original_max_position_embeddings"] = rope.original_positions
    return parameters


def _yarn_attention(parameters: Mapping[str, Any], factor: float) -> float:
    """Returns the factor of cos and sin that YaRN advises. Source: Peng et al. 2023, section 3.4."""

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    weight, over = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if weight and over:
        return scale(as_number("mscale", weight)) / scale(as_number("mscale_all_dim", over))
    return scale(1.0)
