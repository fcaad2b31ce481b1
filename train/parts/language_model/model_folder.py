"""A trained model as a Hugging Face folder: weights, configuration, tokenizer and generation settings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flax import nnx

from jax_smash.checkpoints.directory import new_directory
from jax_smash.checkpoints.huggingface import GENERATION, params_bytes, write
from jax_smash.checkpoints.tokenizer import stop_tokens
from jax_smash.config import ModelConfig
from jax_smash.saving import OF_TOKENIZER

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""Those of a tokenizer that a model is trained with from the start; of a base's, the first is enough."""


def export(output: Path, config: ModelConfig, params: nnx.State, source: Path) -> None:
    """Writes weights, configuration, tokenizer and generation settings; the folder appears whole or not at all.

    Args:
      output: a folder that is absent or empty.
      config: of the model.
      params: its weights, in the dtype that they are stored in.
      source: folder of the model that it comes from, whose tokenizer and generation settings are taken.

    Raises:
      FileExistsError: `output` has something in it.
      FileNotFoundError: the source has no `tokenizer.json`.
    """
    check_tokenizer(source)
    with new_directory(output, params_bytes(params)) as work:
        write_model(work, config, params, source, source=source)


def check_tokenizer(tokenizer: Path, files: Sequence[str] = TOKENIZER_FILES[:1]) -> None:
    """Raises FileNotFoundError where a tokenizer's folder lacks one of these files."""
    for name in files:
        if not (tokenizer / name).is_file():
            raise FileNotFoundError(f"{tokenizer / name} is missing")


def write_model(
    work: Path, config: ModelConfig, params: nnx.State, tokenizer: Path, *, source: Path | None = None
) -> None:
    """Writes a model into an existing folder.

    Args:
      work: the folder.
      config, params: as for `export`.
      tokenizer: folder of the tokenizer, whose files are copied.
      source: folder of the model that it comes from: its generation settings are kept, and its stop tokens are added
        to those of `config`. None for a model that comes from none.
    """
    settings: dict[str, Any] = {"bos_token_id": config.bos_token, "pad_token_id": config.pad_token}
    stops = config.eos_tokens
    if source is not None and (source / GENERATION).is_file():
        settings |= json.loads((source / GENERATION).read_text(encoding="utf-8"))
        stops = stop_tokens(source, config, None)
    write(work, config, params)
    for name in OF_TOKENIZER:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, work / name)
    settings["eos_token_id"] = list(stops)
    (work / GENERATION).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
