"""A model on disk, tokenizer and all, small enough to decode in a moment."""

from pathlib import Path
from typing import Any

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
