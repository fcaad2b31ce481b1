"""A model as a directory that `load` reads back, and transformers too."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from jax_smash.checkpoints import huggingface, orbax
from jax_smash.checkpoints.directory import check_new, new_directory
from jax_smash.checkpoints.fingerprint import fingerprint
from jax_smash.checkpoints.smasher import MODULES, save_smasher, tokenizer_sha256
from jax_smash.checkpoints.tokenizer import load_tokenizer, stop_tokens
from jax_smash.config import ModelConfig
from jax_smash.loading import Model
from jax_smash.models.predictors import without_predictor
from jax_smash.quantise import activation_dtype, check_plain

GENERATION = "generation_config.json"

OF_TOKENIZER = tuple(name for name in huggingface.COMPANIONS if name != GENERATION)


def save(model: Model, path: str | Path, *, progress: huggingface.Progress | None = None) -> Path:
    """Writes a model as a Hugging Face directory: weights, configuration, tokenizer, generation settings, modules.

    The directory appears whole or not at all. `load(path)` gives the same model back, weights bit by bit;
    `load(path, modules="auto")` also its HAMburger modules, which stand in the folder `hamburger`. Weights are written
    as they are, in their own dtype; of a model over several devices the host gathers one parameter at a time.

    Args:
      model: a model of this package.
      path: a directory that is absent or empty.
      progress: told of every tensor of the base.

    Returns:
      The directory that was written.

    Raises:
      ValueError: weights are int8; the model is not one of this package's, or its family has no field for something in
        its configuration; its stop tokens leave out one that the configuration or the tokenizer names; it has another
        tokenizer than its modules were made for.
      FileExistsError: the directory has something in it.
      OSError: the disk is full.
    """
    target = check_new(path)
    config, (params, _), modules = model.config, without_predictor(model.params["target"]), model.modules
    if config is None:
        raise ValueError(f"save writes models of this package; {model.name} is none: save its params with Orbax")
    for weights in model.params.values():
        check_plain(weights)
    source = model.path if model.path is not None and model.path.is_dir() else None
    total = sum(huggingface.params_bytes(weights) for weights in model.params.values())
    with new_directory(target, total) as work:
        _write_tokenizer(work, model, source)
        _write_stop_tokens(work, model, config, source)
        if modules is not None:
            modules.config.check_base(config, tokenizer_sha256(work))
        huggingface.write(work, config, params, original_config=_original(source), progress=progress)
        if modules is not None:
            told = modules.base_fingerprint
            if told and activation_dtype(params) == jnp.float16:
                told = fingerprint(config, params)  # What float16 has rounded is written, and known by its own.
            save_smasher(
                work / MODULES,
                modules.config,
                modules.params,
                token_counts=modules.token_counts,
                options=modules.options,
                base_fingerprint=told,
            )
    return target


def _original(source: Path | None) -> dict[str, Any] | None:
    """Returns the `config.json` that the model came with."""
    if source is None:
        return None
    if orbax.is_checkpoint(source):
        return orbax.original_config(source)
    return huggingface.read_config(source)[1] if (source / huggingface.CONFIG).is_file() else None


def _write_tokenizer(work: Path, model: Model, source: Path | None) -> None:
    """Copies the tokenizer's files where the model still has the tokenizer that they hold; else has it write itself.

    A copy keeps the hash by which modules know their base's tokenizer.
    """
    if model.tokenizer is None:
        return
    if source is not None and _alike(model.tokenizer, load_tokenizer(source)):
        for name in OF_TOKENIZER:
            if (source / name).is_file():
                shutil.copyfile(source / name, work / name)
    else:
        model.tokenizer.save_pretrained(str(work))


def _alike(tokenizer: Any, other: Any) -> bool:
    def content(tokenizer: Any) -> Any:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        rules = tokenizer.get_vocab() if backend is None else backend.to_str()
        return rules, tokenizer.special_tokens_map, tokenizer.chat_template

    return other is not None and (tokenizer is other or content(tokenizer) == content(other))


def _write_stop_tokens(work: Path, model: Model, config: ModelConfig, source: Path | None) -> None:
    """Writes the generation settings that the model came with, with its own stop tokens."""
    file = None if source is None else source / GENERATION
    settings = json.loads(file.read_text()) if file is not None and file.is_file() else {}
    if model.stop_tokens:
        settings["eos_token_id"] = list(model.stop_tokens)
    else:
        settings.pop("eos_token_id", None)
    if settings:
        (work / GENERATION).write_text(json.dumps(settings, indent=2) + "\n")
    read_back = stop_tokens(work, config, model.tokenizer)
    if read_back != tuple(sorted(model.stop_tokens)):
        extra = sorted({*read_back} - {*model.stop_tokens})
        raise ValueError(
            f"stop_tokens must hold those that the configuration and the tokenizer name ({extra}), "
            f"for whoever loads the model gets them; got {list(model.stop_tokens)}"
        )
