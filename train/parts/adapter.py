"""Low-rank changes of a base as an adapter of PEFT's layout, which `jax_smash.load` merges into the base it names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float
from safetensors.numpy import save_file

from jax_smash.checkpoints.adapter import CHANGES, PREFIX, SETTINGS
from jax_smash.checkpoints.fit import dotted
from jax_smash.config import ModelConfig
from jax_smash.models.families import tensor_map
from jax_smash.models.transformer import abstract_params
from jax_smash.sharding import on_host
from train.parts.lora import Lora, axes_of


def write_adapter(folder: Path, base: Path, config: ModelConfig, lora: Lora, alpha: float) -> None:
    """Writes changes into an existing folder, in float32.

    Where we have one matrix and a checkpoint several, such as queries, keys and values, these share `lora_A`.

    Args:
      folder: of the adapter.
      base: folder of the base, which the adapter names relative to itself.
      config: of the base.
      lora: the changes.
      alpha: over the rank, what they are multiplied by.
    """
    tensors = _tensors(config, jax.tree.map(on_host, lora))
    modules = sorted({name.removeprefix(PREFIX).rsplit(".", 2)[0] for name in tensors})
    settings = {
        "base_model_name_or_path": os.path.relpath(base.resolve(), folder.resolve()),
        "bias": "none",
        "inference_mode": True,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": next(iter(lora.values()))["b"].shape[0],
        "target_modules": sorted({module.rsplit(".", 1)[-1] for module in modules}),
        "task_type": "CAUSAL_LM",
    }
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    # Contiguous: the writer takes an array's bytes as they lie in memory.
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(tensors, folder / CHANGES, metadata={"format": "pt"})


def _tensors(config: ModelConfig, lora: Lora) -> dict[str, Float[np.ndarray, "rows columns"]]:
    """Returns both factors of each of a checkpoint's matrices that changes, by PEFT's name."""
    parts, shapes = tensor_map(config), dict(nnx.to_flat_state(abstract_params(config)[1]))
    tensors: dict[str, np.ndarray] = {}
    for where, variable in shapes.items():
        if dotted(where) not in lora:
            continue
        a, b = (np.asarray(lora[dotted(where)][side]) for side in ("a", "b"))
        summed, others = axes_of(variable)
        # `b` is the parameter with the rank where its inputs are, so that the parts of a parameter are cut from it.
        b = b.reshape(len(b), *(1,) * (len(summed) - 1), *(variable.shape[i] for i in others))
        b = np.moveaxis(b, range(len(summed)), summed)
        for part in sorted(parts[where], key=lambda part: part.start):
            module = PREFIX + part.name.removesuffix(".weight")
            rows = part.view(b).reshape(part.shape[0], -1)
            above = tensors.get(f"{module}.lora_B.weight", rows[:0])
            tensors[f"{module}.lora_A.weight"] = a.T
            tensors[f"{module}.lora_B.weight"] = np.concatenate([above, rows])
    return tensors
