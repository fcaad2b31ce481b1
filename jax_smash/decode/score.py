"""Log-probabilities of given text: of prompts while they are read, and of choices in evaluation."""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.protocols import ModelDef, Params
from jax_smash.sampling import log_probabilities
from jax_smash.sharding import constrain

PIECE_BYTES = 64 * 2**20
"""About how many bytes of float32 logits are held at a time."""


@functools.partial(jax.jit, static_argnums=(0, 4))
def score(
    target: ModelDef, params: Params, hidden: Float[Array, "B T D"], following: Int[Array, "B T"], n: int
) -> tuple[Float[Array, "B T"], Float[Array, "B T n"], Int[Array, "B T n"]]:
    """Returns the log-probability, in nats, of the token that follows each entry, and the n likeliest tokens there.

    Logits are made for one piece of the entries at a time, never for all of them.

    Args:
      target: the model.
      params: its parameters under `target`.
      hidden: the target's final hidden states.
      following: the token after each entry.
      n: likeliest tokens to return; may be 0.
    """
    model = target.bind(params["target"])
    batch, width, _ = hidden.shape
    entries = batch * width
    piece = min(entries, max(1, PIECE_BYTES // (4 * model.vocab_size)))
    pieces = math.ceil(entries / piece)
    padding = pieces * piece - entries
    flat = jnp.pad(hidden.reshape(entries, -1), ((0, padding), (0, 0))).reshape(pieces, piece, -1)
    # The width is divided as the head's is, so that the head is not gathered.
    flat = constrain(flat, None, None, "embed")
    token = jnp.pad(following.reshape(entries), (0, padding)).reshape(pieces, piece)

    chosen, top_values, top_tokens = jax.lax.map(
        lambda x: log_probabilities(model.unembed(x[0]), x[1], n), (flat, token)
    )

    def rows(x: Array) -> Array:
        return x.reshape(pieces * piece, *x.shape[2:])[:entries].reshape(batch, width, *x.shape[2:])

    return rows(chosen), rows(top_values), rows(top_tokens)
