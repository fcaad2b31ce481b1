"""The weights that a run with modules grafted on a base begins with, and those that its base works with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jax_smash.checkpoints.smasher import load_smasher
from jax_smash.smash.smasher import random_smasher
from train.parts.hamburger.settings import SmashSettings
from train.parts.lora import first_lora, merged
from train.run.start import quick_to_learn


def first_smash_params(
    settings: SmashSettings, base: nnx.State, modules: Path | None = None
) -> tuple[nnx.GraphDef, dict[str, Any]]:
    """Returns the modules' structure, and the parameters that a run begins to train, by role.

    `smasher` is always there, `base` where the base is trained too, `lora` where it learns low-rank changes.

    Args:
      settings: of the run.
      base: the base's parameters, in float32 where they are trained; else their shapes suffice.
      modules: folder of trained modules to begin with; None for random ones.

    Raises:
      FileNotFoundError: a file of the modules is missing.
      ValueError: they are damaged, of another base or tokenizer, or of other sizes than the settings'.
    """
    graphdef, smasher = random_smasher(settings.model, settings.smash, settings.seed)
    if modules is None:
        # A slot is then the mean of its tokens at first, and the micro-step decoder's layers are the identity.
        smasher = quick_to_learn(smasher, settings.model, settings.seed)
    else:
        smasher = _trained(modules, settings)
    params: dict[str, Any] = {"smasher": smasher}
    if settings.base == "trained":
        params["base"] = base
    if settings.base == "lora":
        params["lora"] = first_lora(base, settings.rank, settings.seed)
    return graphdef, params


def _trained(modules: Path, settings: SmashSettings) -> nnx.State:
    found = load_smasher(modules, settings.model, settings.tokenizer_sha256, dtype=jnp.float32)
    for field in dataclasses.fields(found.config):
        own, asked = (getattr(config, field.name) for config in (found.config, settings.smash))
        if own != asked:
            raise ValueError(f"{field.name} must be the {own} of the modules in {modules}; got {asked}")
    return found.params


def base_params(settings: SmashSettings, params: Mapping[str, Any]) -> nnx.State:
    """Returns the weights that the base works with: those that it learned, or its own with what it learned in them.

    Low-rank changes are added in float32, and the sum has the dtype of the base's own weights.
    """
    if settings.base == "trained":
        return params["base"]
    own = jax.lax.stop_gradient(params["base"])
    return merged(own, params["lora"], settings.alpha / settings.rank) if settings.base == "lora" else own
