"""GGUF checkpoints: a model, its tokenizer and its chat template in one file, or in one that was split."""

from jax_smash.checkpoints.gguf.config import config_json
from jax_smash.checkpoints.gguf.file import GgufFile, find_gguf, is_gguf, open_gguf
from jax_smash.checkpoints.gguf.tensors import GgufTensors
from jax_smash.checkpoints.gguf.tokenizer import gguf_tokenizer

__all__ = ["GgufFile", "GgufTensors", "config_json", "find_gguf", "gguf_tokenizer", "is_gguf", "open_gguf"]
