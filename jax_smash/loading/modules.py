"""HAMburger modules beside a model: where they are, whether they fit, and grafting them."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp

from jax_smash.checkpoints import huggingface, orbax
from jax_smash.checkpoints.adapter import with_base
from jax_smash.checkpoints.configuration import checkpoint_config
from jax_smash.checkpoints.fingerprint import fingerprint
from jax_smash.checkpoints.gguf import is_gguf
from jax_smash.checkpoints.smasher import (
    MODULES,
    SMASHER_FILES,
    SmashModules,
    check_base_weights,
    check_smasher,
    is_smasher,
    read_smasher,
    tokenizer_sha256,
)
from jax_smash.config import ModelConfig
from jax_smash.loading.model import Model
from jax_smash.loading.names import find
from jax_smash.models.families.family import in_use
from jax_smash.models.predictors.beside import without_predictor
from jax_smash.quantise import activation_dtype, has_int8
from jax_smash.sharding import mesh_of, place
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.options import SmashOptions


def find_modules(name: str | Path, modules: str | Path) -> Path:
    """Returns the folder of HAMburger modules.

    Args:
      name: the model that they belong to, as `load` takes it.
      modules: a folder, or `auto` for the one beside the model.

    Raises:
      FileNotFoundError: there is no such model, or no modules are there.
    """
    if str(modules) != "auto":
        folder = Path(modules).expanduser()
        if not is_smasher(folder):
            raise FileNotFoundError(f"{folder} has no HAMburger modules: smasher.json is missing")
        return folder
    base = find(name, also=[f"{MODULES}/{file}" for file in (*SMASHER_FILES, *huggingface.FETCHED)])
    folder = (base.parent if is_gguf(base) else base) / MODULES
    if not is_smasher(folder):
        raise FileNotFoundError(f"{name} has no HAMburger modules in {folder}; give --modules FOLDER")
    return folder


def check_modules(name: str | Path, modules: str | Path) -> SmashConfig:
    """Returns the configuration of HAMburger modules after checking that they fit a model. It reads no weights.

    Args:
      name, modules: as in `find_modules`.

    Raises:
      FileNotFoundError: there is no such model, or no modules are there.
      ValueError: the modules, or the base in their folder, do not fit the model, or a file is damaged.
    """
    path, folder = with_base(find(name), find)[0], find_modules(name, modules)
    config = checkpoint_config(path)
    base_source(path, config, folder)
    return check_smasher(folder, config, tokenizer_sha256(path))


def modules_options(name: str | Path, modules: str | Path) -> SmashOptions:
    """Returns the settings that HAMburger modules were calibrated with, before any weights are read.

    Args:
      name, modules: as in `find_modules`.

    Raises:
      FileNotFoundError: there is no such model, or no modules are there.
      ValueError: their description is damaged.
    """
    return read_smasher(find_modules(name, modules)).options


def base_source(path: Path, config: ModelConfig, folder: Path | None) -> Path:
    """Returns the folder of the base's weights: that of the modules if it holds a base, else that of the model.

    Raises:
      ValueError: the base in the modules' folder has another configuration or tokenizer.
    """
    if folder is None or not (orbax.is_checkpoint(folder) or (folder / huggingface.CONFIG).is_file()):
        return path
    if in_use(checkpoint_config(folder)) != in_use(config):
        raise ValueError(f"the base in {folder} must have the configuration of the one in {path}; it has another")
    if tokenizer_sha256(folder) not in ("", tokenizer_sha256(path)):
        raise ValueError(f"the base in {folder} must have the tokenizer of the one in {path}; it has another")
    return folder


def grafted(model: Model, modules: SmashModules) -> Model:
    """Returns a model with HAMburger modules, which are placed on the devices of the model.

    Raises:
      ValueError: the model is not one of this package's, or the modules were made for another configuration or trained
        with other weights.
    """
    if model.config is None:
        raise ValueError(f"HAMburger modules need a model of this package; {model.name} is none")
    modules.config.check_base(model.config, modules.config.tokenizer_sha256)
    if modules.base_fingerprint:
        if (found := weights_fingerprint(model)) is None:
            raise ValueError(
                f"the modules go with the weights alone that they were trained with, and {model.name} does not tell "
                f"what its rounded ones were made from: load it with its modules, or make it by "
                f"jax_smash.loading.quantised"
            )
        check_base_weights(modules.base_fingerprint, found, modules="memory", base=model.name)
    return with_modules(model, modules)


def weights_fingerprint(model: Model) -> str | None:
    """Returns the fingerprint of a model's weights; None where they are rounded and nobody told what they were."""
    (params, _), config = without_predictor(model.params["target"]), model.config
    if config is None or has_int8(params) or activation_dtype(params) == jnp.float16:
        return model.fingerprint
    # What is in memory goes before what was loaded: it may have been replaced.
    return model.kept.get("fingerprint", None, params, lambda: fingerprint(config, params))


def with_modules(model: Model, modules: SmashModules) -> Model:
    """Returns a model with modules that fit it, on the devices of the model."""
    mesh = mesh_of(model.params)
    if mesh is not None:
        modules = dataclasses.replace(modules, params=place(modules.params, mesh))
    return dataclasses.replace(model, modules=modules, params={**model.params, "smasher": modules.params})
