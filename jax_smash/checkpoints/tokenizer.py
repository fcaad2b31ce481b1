"""A checkpoint's tokenizer, and the tokens that end a text."""

import json
from pathlib import Path
from typing import Any

from jax_smash.checkpoints.gguf import gguf_tokenizer, is_gguf, open_gguf
from jax_smash.config import ModelConfig

GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Tokenizer classes that are all in their `tokenizer.json`, under the names of transformers 4 and 5."""


def load_tokenizer(path: Path) -> Any:
    """Returns the tokenizer of a directory or GGUF file; None where it has none. Never runs code from the directory."""
    if is_gguf(path):
        return gguf_tokenizer(open_gguf(path))
    if not has_tokenizer(path):
        return None
    import transformers  # Takes a second to import, so only where a tokenizer is wanted.

    try:
        named = _json(path / "tokenizer_config.json").get("tokenizer_class")
        if named in GENERIC and (path / "tokenizer.json").exists():
            # AutoTokenizer would choose the same, but first import torch where it is installed: seconds more.
            return transformers.PreTrainedTokenizerFast.from_pretrained(str(path), local_files_only=True)
        return transformers.AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # Whatever the library raises, the user is told which file is meant.
        raise ValueError(f"cannot read the tokenizer in {path}: {error}") from error


def has_tokenizer(path: Path) -> bool:
    """Returns whether a directory holds a tokenizer."""
    return any((path / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))


def stop_tokens(path: Path, config: ModelConfig, tokenizer: Any) -> tuple[int, ...]:
    """Returns the ids that end a text, as configuration, generation settings and tokenizer name them, in order.

    Raises:
      ValueError: the generation settings are damaged, or name what is no token.
    """
    stops = set(config.eos_tokens)
    file = path / "generation_config.json"
    eos = _json(file).get("eos_token_id")
    named = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(type(token) is int and 0 <= token < config.vocab_size for token in named):
        raise ValueError(f"{file}: eos_token_id must be tokens below the vocabulary's {config.vocab_size}; got {eos!r}")
    stops |= set(named)
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        stops.add(tokenizer.eos_token_id)
    return tuple(sorted(stops))


def _json(file: Path) -> dict[str, Any]:
    """Returns a file's JSON object; an empty one where there is no file."""
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is damaged: it must be JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object; got {type(content).__name__}")
    return content
