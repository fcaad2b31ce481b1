"""Model families: `config.json` and tensor names of other people's checkpoints, to ours and back."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from jax_smash.config import ModelConfig
from jax_smash.models.families.family import Family, in_use, with_stretched_context
from jax_smash.models.families.gemma import GEMMA, GEMMA2, GEMMA3, GEMMA3_MULTIMODAL, text_fields
from jax_smash.models.families.granite import GRANITE
from jax_smash.models.families.llama import LLAMA
from jax_smash.models.families.mistral import MISTRAL
from jax_smash.models.families.olmo import OLMO2, OLMO3
from jax_smash.models.families.phi import PHI3
from jax_smash.models.families.qwen import QWEN2, QWEN3
from jax_smash.models.families.smollm import SMOLLM3
from jax_smash.models.families.tensors import ParamPath, Part, TensorMap, fill_copies, tensor_shapes
from jax_smash.models.families.tensors import tensor_map as _tensor_map

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        LLAMA,
        QWEN2,
        QWEN3,
        MISTRAL,
        SMOLLM3,
        PHI3,
        OLMO2,
        OLMO3,
        GRANITE,
        GEMMA,
        GEMMA2,
        GEMMA3,
        GEMMA3_MULTIMODAL,
    )
}
"""Every supported family, by the `model_type` of its `config.json`."""

__all__ = [
    "FAMILIES",
    "Family",
    "ParamPath",
    "Part",
    "TensorMap",
    "family_of",
    "fill_copies",
    "from_hf",
    "tensor_map",
    "tensor_shapes",
    "to_hf",
]


def family_of(model_type: Any) -> Family:
    """Returns a family by its `model_type`.

    Raises:
      ValueError: there is no such family.
    """
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"model_type {model_type!r} is not supported; supported: {', '.join(sorted(FAMILIES))}")
    return FAMILIES[model_type]


def from_hf(raw: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration that the content of a `config.json` describes.

    Raises:
      ValueError: the architecture, or something it asks for, is not supported; or a field is missing or wrong.
    """
    family = family_of(raw.get("model_type"))
    architectures = raw.get("architectures") or [family.architecture]
    if family.architecture not in architectures:
        raise ValueError(
            f"architecture {architectures[0]!r} is not supported; {family.model_type} must be {family.architecture}"
        )
    # Weights that must be unpacked first: reading them as they are would give nonsense.
    for packed in ("quantization_config", "compression_config"):
        if raw.get(packed) is not None:
            raise ValueError(f"{packed} is not supported: the checkpoint must hold plain bf16, f16 or f32 weights")
    return with_stretched_context(family.read(raw))


def to_hf(config: ModelConfig, original: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the content of a `config.json` that transformers loads as this model.

    Args:
      config: of the model.
      original: the `config.json` that the model was loaded from. Where it still describes the model it is kept, fields
        that we do not read included.

    Raises:
      ValueError: the family has no field for something in the configuration.
    """
    if original is not None:
        text = text_fields(original) if original.get("model_type") == GEMMA3_MULTIMODAL.model_type else dict(original)
        if in_use(from_hf(text)) == in_use(config):
            return text
    family = family_of(config.family)
    raw = {"architectures": [family.architecture], "model_type": family.model_type, **family.write(config)}
    written = dataclasses.asdict(in_use(from_hf(raw)))
    lost = [name for name, value in dataclasses.asdict(in_use(config)).items() if written[name] != value]
    if lost:
        name = lost[0]
        raise ValueError(
            f"config.json of {family.model_type} cannot say {name}={getattr(config, name)!r}; "
            f"it would be read as {json.dumps(written[name])}"
        )
    return raw


def tensor_map(config: ModelConfig) -> TensorMap:
    """Returns the checkpoint tensors that each parameter of a model is made of."""
    family = family_of(config.family)
    return _tensor_map(config, family.norms, fused=family.fused)
