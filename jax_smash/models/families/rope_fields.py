"""Rotary embeddings as a `config.json` describes them, in the old fields and the new."""

import math
from collections.abc import Mapping
from typing import Any

from jax_smash.config import AttentionKind, RopeConfig
from jax_smash.models.families.fields import LAYER_KINDS, Fields, as_number

SCALINGS = {
    "default": "none",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "dynamic": "dynamic",
}
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
    "short_factor",
    "long_factor",
}


def rope_from_hf(fields: Fields) -> RopeConfig:
    """Returns the rotary embedding of a family that has one for all layers, and rotates whole heads.

    `rope_scaling`, the older field, wins over `rope_parameters`, as it does in transformers.
    """
    fields.refuse("partial_rotary_factor", 1, 1.0)
    parameters = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    rope = rope_of_parameters(parameters, fields, base=as_number("rope_theta", fields.get("rope_theta") or 1e4))
    if rope.partial != 1:
        raise ValueError(f"partial_rotary_factor={rope.partial!r} is not supported for {fields.family}")
    return rope


def rope_by_kind(fields: Fields, *, full_base: float, sliding_base: float) -> dict[AttentionKind, RopeConfig]:
    """Returns the rotary embedding of each attention kind; the older fields scale full layers only.

    Args:
      fields: of the configuration.
      full_base, sliding_base: where the parameters of a kind name none.

    Raises:
      ValueError: parameters are given for all kinds at once, or are not supported.
    """
    parameters = fields.get("rope_parameters") or {}
    if not isinstance(parameters, Mapping):
        raise ValueError(f"rope parameters must be an object; got {parameters!r}")
    unknown = sorted(set(parameters) - set(LAYER_KINDS))
    if unknown:
        raise ValueError(
            f"rope_parameters of {fields.family} must be given for {' and '.join(LAYER_KINDS)}; got {unknown[0]}"
        )
    full = {**(parameters.get("full_attention") or {}), **(fields.get("rope_scaling") or {})}
    ropes: dict[AttentionKind, RopeConfig] = {
        "full": rope_of_parameters(full, fields, base=full_base),
        "sliding": rope_of_parameters(parameters.get("sliding_attention") or {}, fields, base=sliding_base),
    }
    for rope in ropes.values():
        if rope.partial != 1:
            raise ValueError(f"partial_rotary_factor={rope.partial!r} is not supported for {fields.family}")
    return ropes


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
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in SCALINGS:
        raise ValueError(f"rope type {kind!r} is not supported; supported: {', '.join(SCALINGS)}")

    def number(name: str, default: float | None = None) -> float:
        value = parameters.get(name)
        if value is None and default is None:
            raise ValueError(f"rope type {kind} must have {name}; it is missing")
        return as_number(name, default if value is None else value)

    base, partial = number("rope_theta", base), number("partial_rotary_factor", 1.0)
    if base <= 0 or number("factor", 1.0) <= 0:
        raise ValueError(f"rope_theta and factor must be above 0; got {base:g} and {parameters.get('factor')!r}")
    if kind == "default":
        return RopeConfig(base=base, partial=partial)
    if kind == "linear":
        return RopeConfig(base=base, scaling="linear", factor=number("factor"), partial=partial)
    if kind == "dynamic":
        context = fields.integer("max_position_embeddings")
        factor = number("factor")
        if factor < 1:
            raise ValueError(f"factor of rope type dynamic must be at least 1; got {factor}")
        return RopeConfig(base=base, scaling="dynamic", factor=factor, original_positions=context, partial=partial)
    # A few writers put the original length beside the rope parameters; there it wins.
    original = fields.get("original_max_position_embeddings")
    if original is None:
        original = number("original_max_position_embeddings", float(fields.integer("max_position_embeddings")))
    if as_number("original_max_position_embeddings", original) < 1:
        raise ValueError(f"original_max_position_embeddings must be at least 1; got {original!r}")
    if kind == "llama3":
        return RopeConfig(
            base=base,
            scaling="llama3",
            factor=number("factor"),
            original_positions=int(original),
            low=number("low_freq_factor"),
            high=number("high_freq_factor"),
            partial=partial,
        )
    factor = number("factor", fields.integer("max_position_embeddings") / int(original))
    if kind == "longrope":
        return RopeConfig(
            base=base,
            scaling="longrope",
            factor=factor,
            original_positions=int(original),
            attention_factor=_longrope_attention(factor, int(original))
            if parameters.get("attention_factor") is None
            else number("attention_factor"),
            partial=partial,
            short_factors=_numbers(parameters, "short_factor"),
            long_factors=_numbers(parameters, "long_factor"),
        )
    return RopeConfig(
        base=base,
        scaling="yarn",
        factor=factor,
        original_positions=int(original),
        low=number("beta_slow", 1.0),
        high=number("beta_fast", 32.0),
        attention_factor=number("attention_factor", _yarn_attention(parameters, factor)),
        truncate=bool(parameters.get("truncate", True)),
        partial=partial,
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
    if rope.partial != 1:
        parameters["partial_rotary_factor"] = rope.partial
    if rope.scaling == "longrope":
        parameters |= {
            "short_factor": list(rope.short_factors),
            "long_factor": list(rope.long_factors),
            "attention_factor": rope.attention_factor,
        }
    # That of `dynamic` is the context of the configuration.
    if rope.original_positions and rope.scaling != "dynamic":
        parameters["original_max_position_embeddings"] = rope.original_positions
    return parameters


def _numbers(parameters: Mapping[str, Any], name: str) -> tuple[float, ...]:
    values = parameters.get(name)
    if not isinstance(values, list):
        raise ValueError(f"rope type longrope must have {name}, a list of numbers; got {values!r}")
    return tuple(as_number(name, value) for value in values)


def _longrope_attention(factor: float, original: int) -> float:
    """Returns the factor of cos and sin that LongRoPE's released models have."""
    if factor <= 1:
        return 1.0
    if original < 2:
        raise ValueError(f"rope type longrope must have attention_factor where the original context is {original}")
    return math.sqrt(1 + math.log(factor) / math.log(original))


def _yarn_attention(parameters: Mapping[str, Any], factor: float) -> float:
    """Returns the factor of cos and sin that YaRN advises. Source: Peng et al. 2023, section 3.4."""

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    weight, over = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if weight and over:
        return scale(as_number("mscale", weight)) / scale(as_number("mscale_all_dim", over))
    return scale(1.0)
