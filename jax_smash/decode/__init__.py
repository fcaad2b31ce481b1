"""The one decoding loop and its strategies."""

from jax_smash.decode.loop import decode, prefill, start

__all__ = ["decode", "prefill", "start"]
