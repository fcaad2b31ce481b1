"""Attention of a block of new entries over the cache and over the block itself."""

from jax_smash.attention.dispatch import attend

__all__ = ["attend"]
