"""Attention of a block of new entries over the cache and over the block itself."""

from jax_smash.attention.dispatch import attend
from jax_smash.attention.pages import attend_pages
from jax_smash.attention.selected import attend_held, attend_selected, slot_probabilities

__all__ = ["attend", "attend_held", "attend_pages", "attend_selected", "slot_probabilities"]
