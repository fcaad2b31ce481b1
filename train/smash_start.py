"""The weights that a run with modules grafted on a base begins with, and those that its base works with."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jax_smash.smash.smasher import random_smasher
from train.lora import first_lora, merged
from train.smash_settings import SmashSettings
from train.start import quick_to_learn


def first_smash_params(settings: SmashSettings, base: nnx.State) -> tuple[nnx.GraphDef, dict[str, Any]]:
    """Returns the modules' structure, and the parameters that a run begins with, by role.

    `base` and `smasher` are always there, `lora` where the base learns low-rank changes, `teacher` where the weights
    that it began with are kept beside those that it learns.

    Args:
      settings: of the run.
      base: the base's float32 parameters.
    """
    graphdef, smasher = random_smasher(settings.model, settings.smash, settings.seed)
    # A slot is then the mean of its tokens at first, and the micro-step decoder's layers are the identity.
    smasher = quick_to_learn(smasher, settings.model, settings.seed)
    params: dict[str, Any] = {"base": base, "smasher": smasher}
    if settings.base == "lora":
        params["lora"] = first_lora(base, settings.rank, settings.seed)
    if settings.has_teacher:
        params["teacher"] = jax.tree.map(jnp.copy, base)
    return graphdef, params


def base_params(settings: SmashSettings, params: dict[str, Any]) -> nnx.State:
    """Returns the weights that the base works with: those that it learned, or its own with what it learned in them."""
    if settings.base == "trained":
        return params["base"]
    own = jax.lax.stop_gradient(params["base"])
    return merged(own, params["lora"], settings.alpha / settings.rank) if settings.base == "lora" else own
