"""Random LoRA adapters, as PEFT writes them, made without it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from jax_smash.checkpoints.fit import DTYPES

SETTINGS = {
    "alpha_pattern": {},
    "auto_mapping": None,
    "base_model_name_or_path": "../base",
    "bias": "none",
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "lora_alpha": 6,
    "lora_bias": False,
    "lora_dropout": 0.05,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "qalora_group_size": 16,
    "r": 3,
    "rank_pattern": {},
    "revision": None,
    "target_modules": ["q_proj", "v_proj"],
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_dora": False,
    "use_rslora": False,
}
"""What PEFT writes of an ordinary adapter."""


def write_adapter(
    directory: Path,
    shapes: dict[str, tuple[int, int]],
    *,
    ranks: dict[str, int] | None = None,
    dtype: str = "F32",
    **more: Any,
) -> dict[str, np.ndarray]:
    """Writes an adapter of some of a base's modules and returns its tensors.

    Args:
      directory: where to.
      shapes: outputs and inputs of each module, by its name in the base.
      ranks: of modules with a rank of their own.
      dtype: of the tensors.
      more: settings that differ from `SETTINGS`.
    """
    settings = SETTINGS | more
    rng = np.random.default_rng(7)
    tensors = {}
    for module, (outputs, inputs) in shapes.items():
        rank = (ranks or {}).get(module, settings["r"])
        a, b = rng.standard_normal((rank, inputs)) * inputs**-0.5, rng.standard_normal((outputs, rank))
        tensors[f"base_model.model.{module}.lora_A.weight"] = a.astype(DTYPES[dtype])
        tensors[f"base_model.model.{module}.lora_B.weight"] = b.astype(DTYPES[dtype])
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    return tensors
