"""Randomness of drafting and rejection: drawn from a row's key and a place alone, and apart from plain sampling's."""

import enum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, UInt32


class Purpose(enum.IntEnum):
    """What numbers are drawn for: a row's key is folded with a purpose plus a node, then with a position.

    Plain sampling (`sampling.gumbel_noise`) folds it with a position alone, which is below 2³¹ as no purpose is. Each
    has room for 2²⁴ nodes.
    """

    CHILDREN = 2**31
    """Which tokens a drafter proposes."""
    TRIAL = 2**31 + 2**24
    """Whether a proposed token is accepted."""
    AFTER = 2**31 + 2 * 2**24
    """Which token follows the last accepted one."""


def place_key(
    key: Key[Array, "B"], purpose: Purpose, position: Int[Array, "B M"], node: Int[Array, "B M"]
) -> Key[Array, "B M"]:
    """Returns a key that depends on the row's key, the purpose and the place alone.

    Args:
      key: of each row.
      purpose: what is drawn.
      position: index, in the row's sequence, of the token that is decided on.
      node: of the draft tree; tells apart what is drawn for one position and purpose.
    """
    apart = node.astype(jnp.uint32) + jnp.uint32(purpose)

    def fold(key: Key[Array, ""], apart: UInt32[Array, ""], position: Int[Array, ""]) -> Key[Array, ""]:
        return jax.random.fold_in(jax.random.fold_in(key, apart), position)

    return jax.vmap(jax.vmap(fold, in_axes=(None, 0, 0)))(key, apart, position)


def gumbel(key: Key[Array, "*batch"], vocab_size: int) -> Float[Array, "*batch V"]:
    """Returns Gumbel noise: log-probabilities plus it are largest at a token drawn from them."""
    noise = jax.vmap(lambda key: jax.random.gumbel(key, (vocab_size,), jnp.float32))(key.reshape(-1))
    return noise.reshape(*key.shape, vocab_size)
