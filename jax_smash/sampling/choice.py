"""The choice of a token from processed logits."""

import functools
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from jax_smash import cpu


def row_keys(seeds: Sequence[int] | np.ndarray | Array, *, samples: int = 1) -> Key[Array, "B"]:
    """Makes the random key of each row: the samples of one seed side by side.

    A key depends on its seed and sample number alone. The generator is named, since others draw different numbers for
    a key alone and in a batch.

    Args:
      seeds: of each prompt, from 0 to 2³² − 1.
      samples: rows a seed.

    Raises:
      ValueError: a seed is out of range.
    """
    seeds = [operator.index(seed) for seed in seeds]
    check_seeds(seeds)
    return _row_keys(jnp.asarray(seeds, jnp.uint32), samples)


@functools.partial(jax.jit, static_argnums=1)
def _row_keys(seeds: Array, samples: int) -> Key[Array, "B"]:
    keys = jax.vmap(lambda seed: jax.random.key(seed, impl="threefry2x32"))(seeds)
    number = jnp.arange(samples, dtype=jnp.uint32)
    return jax.vmap(lambda key: jax.vmap(lambda i: jax.random.fold_in(key, i))(number))(keys).reshape(-1)


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuses seeds that a random key cannot be made of.

    Raises:
      ValueError: a seed is out of range.
    """
    for seed in seeds:
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed must be from 0 to {2**32 - 1}; got {seed}")


def gumbel_noise(key: Key[Array, "B"], position: Int[Array, "B M"], vocab_size: int) -> Float[Array, "B M V"]:
    """Returns the noise of each place: the same for a row's key and a position, wherever and whenever it is asked for.

    Args:
      key: of each row, of threefry2x32 as `row_keys` makes them; other generators draw all rows from the first's key.
      position: index, in the row's sequence, of the token to be chosen.
      vocab_size: V.
    """

    def noise(key: Key[Array, ""], position: Int[Array, ""]) -> Float[Array, "V"]:
        return jax.random.gumbel(jax.random.fold_in(key, position), (vocab_size,), jnp.float32)

    return jax.vmap(jax.vmap(noise, in_axes=(None, 0)))(key, position)


def choose(
    logits: Float[Array, "B M V"],
    key: Key[Array, "B"],
    position: Int[Array, "B P"],
    *,
    sampled: bool,
    place: Int[Array, "B M"] | None = None,
) -> Int[Array, "B M"]:
    """Returns the token at each node: the likeliest after Gumbel noise, which draws it from the softmax of the logits.

    Two nodes of a row that stand at the same position get the same noise: a draft agrees with what plain decoding
    would have chosen there.

    Args:
      logits: processed; a greedy row has one finite logit a node where others sample (`Temperature` at 0).
      key: of each row, of threefry2x32 as `row_keys` makes them; other generators draw all rows from the first's key.
      position: index, in the row's sequence, of the token to be chosen; one a node.
      sampled: some row samples; False takes the likeliest token, without noise.
      place: which of the positions each node's is, where nodes share positions: noise is drawn once for each.
    """
    if sampled:
        noise = gumbel_noise(key, position, logits.shape[-1])
        if place is not None:
            noise = jnp.take_along_axis(noise, place[:, :, None], axis=1)
        logits = logits.astype(jnp.float32) + noise
    return highest(logits)


def highest(logits: Float[Array, "*batch V"]) -> Int[Array, "*batch"]:
    """Returns the index of the highest logit, the first of several; where one is NaN, of the first NaN."""

    def at_once(logits: Array) -> Array:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    return jax.lax.platform_dependent(logits, cpu=cpu.highest, default=at_once)


def likeliest(logits: Float[Array, "*batch V"], n: int) -> tuple[Float[Array, "*batch n"], Int[Array, "*batch n"]]:
    """Returns the n highest logits, highest first and of equal ones the first, and their tokens.

    The n highest lie in the n pieces of the vocabulary whose own highest are highest, so only those are sorted. XLA on
    a CPU sorts all of an array that has more than two axes.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    rows, vocab_size = flat.shape
    pieces = next((p for p in (256, 128, 64) if vocab_size % p == 0 and vocab_size >= p * p and p > 2 * n), 0)
    if not pieces or not n:
        values, tokens = jax.lax.top_k(flat, n)
    else:
        width = vocab_size // pieces
        cut = flat.reshape(rows, pieces, width)
        piece = jnp.sort(jax.lax.top_k(cut.max(-1), n)[1])  # In their order, by which equal logits are told apart.
        among = jnp.take_along_axis(cut, piece[:, :, None], axis=1).reshape(rows, n * width)
        values, place = jax.lax.top_k(among, n)
        tokens = jnp.take_along_axis(piece, place // width, axis=1) * width + place % width
    shape = (*logits.shape[:-1], n)
    return values.reshape(shape), tokens.astype(jnp.int32).reshape(shape)


def log_probabilities(
    logits: Float[Array, "*batch V"], tokens: Int[Array, "*batch"], n: int
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch n"], Int[Array, "*batch n"]]:
    """Returns log-probabilities in nats under the model's own logits, before any processor.

    Args:
      logits: of the model.
      tokens: the tokens that were chosen.
      n: how many of the likeliest tokens to return, at most V.

    Returns:
      The chosen token's log-probability; those of the n likeliest, likeliest first; and their ids.

    Raises:
      ValueError: n is out of range.
    """
    if not 0 <= n <= logits.shape[-1]:
        raise ValueError(f"log-probabilities must be asked for at most {logits.shape[-1]} tokens; got {n}")
    logits = logits.astype(jnp.float32)
    total = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0] - total
    values, ids = likeliest(logits, n)
    return chosen, values - total[..., None], ids
