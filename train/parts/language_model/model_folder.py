"""A trained model as a Hugging Face folder: weights, configuration, tokenizer and generation settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from flax import nnx

from jax_smash.checkpoints.directory import new_directory
from jax_smash.checkpoints.huggingface import params_bytes, write
from jax_smash.config import ModelConfig

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def export(output: Path, config: ModelConfig, params: nnx.State, tokenizer: Path) -> None:
    """Writes weights, configuration, tokenizer and generation settings; the folder appears whole or not at all.

    Args:
      output: a folder that is absent or empty.
      config: of the model.
      params: its weights, in the dtype that they are stored in.
      tokenizer: folder of the tokenizer, which is copied.

    Raises:
      FileExistsError: `output` has something in it.
      FileNotFoundError: the tokenizer's folder lacks a file.
    """
    check_tokenizer(tokenizer)
    with new_directory(output, params_bytes(params)) as work:
        write_model(work, config, params, tokenizer)


def check_tokenizer(tokenizer: Path) -> None:
    """Raises FileNotFoundError where a tokenizer's folder lacks a file."""
    for name in TOKENIZER_FILES:
        if not (tokenizer / name).is_file():
            raise FileNotFoundError(f"{tokenizer / name} is missing")


def write_model(work: Path, config: ModelConfig, params: nnx.State, tokenizer: Path) -> None:
    """Writes what `export` does into an existing folder."""
    settings = {
        "bos_token_id": config.bos_token,
        "eos_token_id": list(config.eos_tokens),
        "pad_token_id": config.pad_token,
    }
    write(work, config, params)
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, work / name)
    (work / "generation_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
