"""How sure a model is of the next token, and how far two predictions of it lie apart; both in nats."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jax_smash.objectives import Unembed
from jax_smash.shapes import round_up


def next_token_entropy(unembed: Unembed, hidden: Float[Array, "B T D"], *, chunk: int = 512) -> Float[Array, "B T"]:
    """Returns the entropy of the token after each entry, over the whole vocabulary, in nats, float32.

    Equivalent formula: −Σ p · log p, p = softmax(logits).

    Args:
      unembed: logits of entries, `CausalLM.unembed`.
      hidden: after the final norm.
      chunk: entries whose logits are in memory at once, about.
    """

    def entropy(hidden: Array) -> Array:
        log_p = jax.nn.log_softmax(unembed(hidden).astype(jnp.float32), axis=-1)
        return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)

    return _by_pieces(entropy, hidden, chunk=chunk)


def divergence(
    unembed: Unembed, of: Float[Array, "B T D"], approximation: Float[Array, "B T D"], *, chunk: int = 512
) -> Float[Array, "B T"]:
    """Returns what is lost where the next token is predicted from another hidden vector: KL, in nats, float32.

    Equivalent formula: Σ p · (log p − log q), p and q the softmax of the logits of `of` and `approximation`.

    Args:
      unembed: logits of entries, `CausalLM.unembed`.
      of, approximation: after the final norm.
      chunk: entries whose logits are in memory at once, about.
    """

    def kl(of: Array, approximation: Array) -> Array:
        log_p, log_q = (jax.nn.log_softmax(unembed(x).astype(jnp.float32), axis=-1) for x in (of, approximation))
        return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)

    return _by_pieces(kl, of, approximation, chunk=chunk)


def entropy_bound(confidence: float, vocab_size: int) -> float:
    """Returns the largest entropy, in nats, of a prediction whose likeliest token has the probability `confidence`.

    All other tokens are then equally likely.

    Raises:
      ValueError: `confidence` is not in (0, 1].
    """
    if not 0 < confidence <= 1:
        raise ValueError(f"confidence must be above 0 and at most 1; got {confidence}")
    rest = 1 - confidence
    if not rest or vocab_size < 2:
        return 0.0
    return -confidence * math.log(confidence) - rest * math.log(rest / (vocab_size - 1))


def _by_pieces(function: Callable[..., Array], *vectors: Float[Array, "B T D"], chunk: int) -> Float[Array, "B T"]:
    """Returns a function of vectors, computed for a piece of the columns at a time."""
    rows, length, _ = vectors[0].shape
    columns = min(length, max(1, chunk // rows))
    padding = round_up(length, columns) - length
    # Cut along T: rows may be divided among devices.
    pieces = tuple(
        jnp.pad(x, ((0, 0), (0, padding), (0, 0))).reshape(rows, -1, columns, x.shape[2]).swapaxes(0, 1)
        for x in vectors
    )
    made = jax.lax.map(lambda piece: function(*piece), pieces)
    return made.swapaxes(0, 1).reshape(rows, -1)[:, :length]
