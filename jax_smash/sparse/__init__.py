"""Policies that keep or read a part of a cache, and models that decode by them."""

from jax_smash.sparse.model import SparseDef, sparsified
from jax_smash.sparse.streaming import StreamingLLM

__all__ = ["SparseDef", "StreamingLLM", "sparsified"]
