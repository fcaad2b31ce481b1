"""A model's sizes: those of a checkpoint in either layout, or of a shape by name."""

from pathlib import Path

from jax_smash.checkpoints import huggingface, orbax
from jax_smash.config import ModelConfig
from jax_smash.models.families.presets import preset


def checkpoint_config(directory: Path) -> ModelConfig:
    """Returns the configuration of a checkpoint, Hugging Face's or one that `convert` wrote.

    Raises:
      FileNotFoundError: there is none in the directory.
      ValueError: it is damaged, or asks for something that is not supported.
    """
    return orbax.read_config(directory) if orbax.is_checkpoint(directory) else huggingface.read_config(directory)[0]


def shape_config(shape: str | Path) -> ModelConfig:
    """Returns the configuration of a shape: a preset's name, or a directory with a `config.json`.

    A directory of that name goes before a preset.

    Raises:
      FileNotFoundError: the directory has no `config.json`.
      ValueError: there is no such shape, or its configuration is damaged.
    """
    if Path(shape).expanduser().exists():
        return huggingface.read_config(shape)[0]
    return preset(str(shape))
