"""What a trained embedder loses where it fuses tokens: the ground that post-generation-aware segmentation stands on."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from jax_smash.cache import Block
from jax_smash.protocols import CausalLM
from jax_smash.smash.entropy import divergence
from jax_smash.smash.smasher import Smasher

WORD = 32
"""Entries whose visibility is packed in one word."""


def fusion_loss(
    base: CausalLM,
    smasher: Smasher,
    tokens: Int[Array, "B T"],
    position: Int[Array, "B T"],
    segments: Int[Array, "B T"],
    *,
    micro_steps: int,
    chunk: int = 512,
) -> Float[Array, "B T J"]:
    """Returns, in nats, what is lost of the next token's prediction where the g tokens up to each one share a slot.

    Entry g − 1 is the divergence of the base's prediction from the fused slot from that with every token in a slot of
    its own; 0 for a token alone, infinite where a document has not g tokens up to there. What stands before the group
    is not fused, so that one forward over 2T entries serves all groups of g tokens. What later tokens lose is not in
    it.

    Args:
      base: bound to its parameters.
      smasher: the trained modules.
      tokens: packed rows.
      position: index of each token in its document.
      segments: documents of a row, from 1; 0 in padding.
      micro_steps: J.
      chunk: entries whose logits are in memory at once, about.
    """
    vectors = base.embed(tokens)
    width = tokens.shape[1]
    both = jnp.concatenate([position, position], axis=1)
    valid = jnp.concatenate([segments, segments], axis=1)
    losses = [jnp.zeros(tokens.shape, jnp.float32)]
    for length in range(2, micro_steps + 1):
        groups = jnp.stack([_earlier(vectors, length - 1 - i) for i in range(length)], axis=2)
        fused = smasher.fuse(groups, jnp.full_like(tokens, length))
        block = Block(
            valid=valid > 0,
            ancestors=jnp.broadcast_to(
                _visibility(width, length)[None], (tokens.shape[0], 2 * width, -(-2 * width // WORD))
            ),
            segments=valid,
        )
        hidden = base.forward(jnp.concatenate([vectors, fused], axis=1), both, None, block).hidden
        lost = divergence(base.unembed, hidden[:, :width], hidden[:, width:], chunk=chunk)
        whole = (_earlier(segments, length - 1) == segments) & (segments > 0)
        losses.append(jnp.where(whole, jnp.maximum(lost, 0.0), jnp.inf))
    return jnp.stack(losses, axis=-1)


def _visibility(width: int, length: int) -> UInt32[Array, "entries words"]:
    """Returns which entries see which: T tokens in causal order, then T fused slots, each of `length` tokens.

    A fused slot sees the tokens before its own, and itself.
    """
    entry = jnp.arange(2 * width, dtype=jnp.int32)
    token, seen = entry[:, None], entry[None]
    of_token = (seen <= token) & (token < width)
    of_fused = (token >= width) & ((seen <= token - width - length) | (seen == token))
    bits = jnp.pad(of_token | of_fused, ((0, 0), (0, -2 * width % WORD))).reshape(2 * width, -1, WORD)
    words = bits.astype(jnp.uint32) << jnp.arange(WORD, dtype=jnp.uint32)[None, None]
    return words.sum(axis=-1, dtype=jnp.uint32)


def _earlier(x: Array, by: int) -> Array:
    """Moves each entry `by` places towards the end of its row, zeros behind which it came."""
    return jnp.pad(x, ((0, 0), (by, 0)) + ((0, 0),) * (x.ndim - 2))[:, : x.shape[1]]
