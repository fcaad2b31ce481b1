"""From one checkpoint format to another."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx

from jax_smash.checkpoints import huggingface, orbax
from jax_smash.checkpoints.adapter import with_base
from jax_smash.checkpoints.directory import check_new, new_directory
from jax_smash.checkpoints.fingerprint import fingerprint
from jax_smash.checkpoints.gguf import is_gguf
from jax_smash.checkpoints.smasher import CONFIG, MODULES, SMASHER_FILES, describe_smasher, is_smasher, read_smasher
from jax_smash.checkpoints.tokenizer import has_tokenizer, load_tokenizer
from jax_smash.config import ModelConfig
from jax_smash.quantise import activation_dtype

FORMATS = ("huggingface", "orbax")

MODULE_FILES = tuple(f"{MODULES}/{file}" for file in (*SMASHER_FILES, *huggingface.FETCHED))
"""What is fetched of a hub repository's modules, as patterns."""


def convert(
    source: str | Path,
    target: str | Path,
    *,
    to: str,
    dtype: Any = None,
    progress: huggingface.Progress | None = None,
    find: Callable[[str], Path] = huggingface.resolve,
) -> Path:
    """Writes a checkpoint in another format or dtype, its tokenizer and its HAMburger modules along with it.

    The target appears whole or not at all. A conversion to the other format and back gives every tensor back bit by
    bit. Modules stay as they are, but for the fingerprint of a base that float16 rounds; the base that stands with them
    is converted like the other.

    Args:
      source: a Hugging Face directory or hub id, a GGUF file, a directory with an Orbax checkpoint, or one with a LoRA
        adapter as PEFT saves it, which is merged into its base; which it is, is found out.
      target: a directory that is absent or empty.
      to: the format to write, one of `FORMATS`.
      dtype: of the weights; None keeps the source's.
      progress: told of every parameter that is read from a Hugging Face checkpoint.
      find: finds an adapter's base by the name that the adapter gives it, where that is no directory.

    Returns:
      The directory that was written.

    Raises:
      FileExistsError: the target has something in it.
      FileNotFoundError: there is no source, or a file of it is missing.
      OSError: the disk is full.
      ValueError: the source is damaged or not supported, or `to` is no format.
    """
    if to not in FORMATS:
        raise ValueError(f"to must be one of {', '.join(FORMATS)}; got {to!r}")
    path = check_new(target)
    directory = huggingface.resolve(source, also=MODULE_FILES)
    config, params, original, folders = _read(directory, dtype, progress, find)
    with new_directory(path, huggingface.params_bytes(params)) as work:
        writer = huggingface.write if to == "huggingface" else orbax.write
        writer(work, config, params, original_config=original)
        own = has_tokenizer(directory)
        for folder in folders:  # Of an adapter with a tokenizer of its own, nothing of its base's stays.
            copy_companions(folder, work, tokenizer=folder == directory or not own)
        modules = (directory.parent if is_gguf(directory) else directory) / MODULES
        if is_smasher(modules):
            _convert_modules(modules, work / MODULES, (config, params), to=to, dtype=dtype)
    return path


def _read(
    directory: Path, dtype: Any, progress: huggingface.Progress | None, find: Callable[[str], Path]
) -> tuple[ModelConfig, nnx.State, dict[str, Any] | None, tuple[Path, ...]]:
    """Returns configuration, weights, the `config.json` that they came with, and the folders that they came from."""
    if orbax.is_checkpoint(directory):
        config, _, params = orbax.load(directory, dtype=dtype)
        return config, params, orbax.original_config(directory), (directory,)
    base, adapter = with_base(directory, find)
    config, original = huggingface.read_config(base)
    _, params = huggingface.load_params(base, config, dtype=dtype, progress=progress, adapter=adapter)
    return config, params, original, (base, directory)


def copy_companions(source: Path, target: Path, *, tokenizer: bool = True) -> None:
    """Copies what goes with the weights: generation settings, and the tokenizer; of a GGUF file, writes that."""
    if is_gguf(source):
        found = load_tokenizer(source) if tokenizer else None
        if found is not None:
            found.save_pretrained(target)
        return
    for name in huggingface.COMPANIONS if tokenizer else (huggingface.GENERATION,):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _convert_modules(
    source: Path, target: Path, written: tuple[ModelConfig, nnx.State], *, to: str, dtype: Any
) -> None:
    """Copies modules, and converts the base in their folder, if there is one; else their base is what was written."""
    if orbax.is_checkpoint(source) or (source / huggingface.CONFIG).is_file():
        convert(source, target, to=to, dtype=dtype)
        written = _read(target, None, None, huggingface.resolve)[:2]
    target.mkdir(exist_ok=True)
    for name in SMASHER_FILES:
        if not (source / name).is_file():
            raise FileNotFoundError(f"{source / name} is missing; {CONFIG} is there")
        shutil.copyfile(source / name, target / name)
    if activation_dtype(written[1]) == jnp.float16 and read_smasher(target).base_fingerprint:
        # What float16 has rounded is known by its own.
        describe_smasher(target, base_fingerprint=fingerprint(*written))
