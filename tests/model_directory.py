"""A model on disk, tokenizer and all, and modules for it, small enough to decode in a moment."""

from pathlib import Path
from typing import Any

from jax_smash.checkpoints import huggingface
from jax_smash.checkpoints.smasher import save_smasher, tokenizer_sha256
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.options import SmashOptions
from jax_smash.smash.smasher import random_smasher
from tests.checkpoints import LLAMA, write_checkpoint
from tests.tokenizers import byte_tokenizer

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"


def write_model(directory: Path, *, template: str | None = TEMPLATE, **changes: Any) -> Path:
    """Writes a two-layer Llama with random weights, a byte tokenizer and a chat template.

    Args:
      directory: where to.
      template: for chats; None for a tokenizer without one.
      changes: to `config.json`.
    """
    tokenizer = byte_tokenizer.__wrapped__()  # Its own copy, since the template is set on it.
    tokenizer.chat_template = template
    write_checkpoint(directory, {**LLAMA, "vocab_size": len(tokenizer), **changes})
    tokenizer.save_pretrained(directory)
    return directory


def write_modules(directory: Path, model: Path, *, seed: int = 0, **sizes: Any) -> Path:
    """Writes random HAMburger modules for a model on disk, of one micro layer, that trust every token.

    Args:
      directory: where to.
      model: folder of the model.
      seed: of the weights.
      sizes: as of `SmashConfig.for_base`.
    """
    config = huggingface.read_config(model)[0]
    smash = SmashConfig.for_base(config, tokenizer_sha256=tokenizer_sha256(model), **({"micro_layers": 1} | sizes))
    trusting = SmashOptions(token_confidence=0)
    save_smasher(directory, smash, random_smasher(config, smash, seed=seed)[1], options=trusting)
    return directory
