"""The groups that trained modules would themselves make of a text: what decoding meets, and training should."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jax_smash.protocols import CausalLM, Forward
from jax_smash.smash.entropy import token_log_probability
from jax_smash.smash.smasher import Smasher
from jax_smash.smash.stop_head import goes_on


def own_lengths(
    base: CausalLM,
    smasher: Smasher,
    forward: Forward,
    tokens: Int[Array, "B T"],
    valid: Bool[Array, "B T"],
    *,
    micro_steps: int,
    confidence: float,
    token_confidence: float,
    chunk: int = 512,
) -> Int[Array, "B T"]:
    """Returns, for each token, how many tokens a group that begins with it would have if the modules said this text.

    A group goes on where the stop head is at least `confidence` sure that it does and the micro-step decoder gives the
    text's next token at least `token_confidence`. What stands before the group is not fused, so that one forward serves
    all groups. A row's first token, which nothing is said from, begins a group of one.

    Args:
      base: bound to its parameters.
      smasher: the trained modules.
      forward: of the base over the rows, each a document's tokens.
      tokens: rows of windows.
      valid: False at padding, which stands on the right.
      micro_steps: J.
      confidence, token_confidence: from 0 to 1.
      chunk: entries whose logits are in memory at once, about.
    """
    rows, width = tokens.shape
    if micro_steps == 1:
        return jnp.ones_like(tokens)
    # By the entry that a group is said from, which stands before its first token.
    ahead = jnp.stack([_later(tokens, i) for i in range(1, micro_steps + 1)], axis=2)
    there = jnp.stack([_later(valid, i) for i in range(2, micro_steps + 1)], axis=2)
    vectors = base.embed(ahead[:, :, :-1].reshape(rows, -1)).reshape(rows, width, micro_steps - 1, -1)
    hidden = smasher.micro_decoder.taught(smasher.prefix(forward.taps, forward.hidden), vectors)
    stops = jnp.concatenate([forward.hidden[:, :, None].astype(hidden.dtype), hidden[:, :, :-1]], axis=2)
    flat = hidden.reshape(rows, -1, hidden.shape[-1])
    likely = token_log_probability(base.unembed, flat, ahead[:, :, 1:].reshape(rows, -1), chunk=chunk)
    sure = jnp.exp(likely).reshape(there.shape) >= jnp.float32(token_confidence)
    open_ = goes_on(smasher.stop_logits(stops), jnp.full(there.shape, confidence, jnp.float32))
    further = jnp.cumprod((sure & open_ & there).astype(jnp.int32), axis=2).sum(axis=2)
    return jnp.pad(1 + further[:, :-1], ((0, 0), (1, 0)), constant_values=1)


def _later(x: Array, by: int) -> Array:
    """Moves each entry `by` places towards the beginning of its row, zeros behind the last."""
    return jnp.pad(x[:, by:], ((0, 0), (0, min(by, x.shape[1]))))
