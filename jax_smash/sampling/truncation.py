"""Processors that shape the distribution a token is drawn from. They come last, in the order of this file."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.pytree import pytree
from jax_smash.sampling.choice import highest
from jax_smash.sampling.stateless import Stateless


@pytree
class Temperature(Stateless):
    """Divides logits by a temperature. At 0 it leaves the likeliest token alone, so that noise changes nothing there.

    Attributes:
      temperature: at least 0. Of tokens that are equally likely at 0, the first is left.
    """

    temperature: Float[Array, "B"]

    @property
    def active(self) -> Bool[Array, "B"]:
        """Rows whose logits it changes."""
        return self.temperature != 1

    def apply(
        self, state: tuple[()], logits: Float[Array, "B M V"], path: Int[Array, "B M P"]
    ) -> Float[Array, "B M V"]:
        """Returns logits at each row's temperature."""
        greedy = (self.temperature == 0)[:, None, None]
        scaled = logits / jnp.where(greedy, 1.0, self.temperature[:, None, None])
        likeliest = highest(logits)[..., None]
        token = jnp.arange(logits.shape[-1], dtype=jnp.int32)[None, None]
        return jnp.where(greedy & (token != likeliest), -jnp.inf, scaled)


@pytree
class TopK(Stateless):
    """Keeps the k likeliest tokens, and those as likely as the last of them.

    Attributes:
      k: tokens; 0 keeps all.
    """

    k: Int[Array, "B"]

    @property
    def active(self) -> Bool[Array, "B"]:
        """Rows that keep not all."""
        return self.k > 0

    def apply(
        self, state: tuple[()], logits: Float[Array, "B M V"], path: Int[Array, "B M P"]
    ) -> Float[Array, "B M V"]:
        """Returns logits with −inf at what is not kept."""
        vocab_size = logits.shape[-1]
        k = jnp.where(self.k == 0, vocab_size, jnp.minimum(self.k, vocab_size))
        order = _in_order(logits)
        least = _largest_threshold(order, jnp.ones((1, 1, 1), jnp.int32), k[:, None])
        return jnp.where(order >= least[..., None], logits, -jnp.inf)


@pytree
class TopP(Stateless):
    """Keeps the likeliest tokens until their probabilities add up to p; the likeliest is always kept.

    Differs: of tokens equally likely at the edge all are kept, so that the result does not depend on a sort's order.

    Attributes:
      p: over 0, at most 1; 1 keeps all.
    """

    p: Float[Array, "B"]

    @property
    def active(self) -> Bool[Array, "B"]:
        """Rows that keep not all."""
        return self.p < 1

    def apply(
        self, state: tuple[()], logits: Float[Array, "B M V"], path: Int[Array, "B M P"]
    ) -> Float[Array, "B M V"]:
        """Returns logits with −inf at what is not kept."""
        order = _in_order(logits)
        probability = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
        least = _largest_threshold(order, probability, self.p[:, None])
        kept = (order >= least[..., None]) | (self.p >= 1)[:, None, None]
        return jnp.where(kept, logits, -jnp.inf)


@pytree
class MinP(Stateless):
    """Keeps the tokens that are at least p times as likely as the likeliest.

    Attributes:
      p: from 0 (keeps all) to 1.
    """

    p: Float[Array, "B"]

    @property
    def active(self) -> Bool[Array, "B"]:
        """Rows that keep not all."""
        return self.p > 0

    def apply(
        self, state: tuple[()], logits: Float[Array, "B M V"], path: Int[Array, "B M P"]
    ) -> Float[Array, "B M V"]:
        """Returns logits with −inf at what is not kept."""
        least = logits.max(-1, keepdims=True) + jnp.log(self.p)[:, None, None]
        return jnp.where(logits >= least, logits, -jnp.inf)


def _in_order(x: Float[Array, "*batch V"]) -> Int[Array, "*batch V"]:
    """Returns integers in the order of the numbers: a float's bits, as a signed magnitude. −0 and 0 are equal."""
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
    return jnp.where(bits < 0, jnp.int32(jnp.iinfo(jnp.int32).min) - bits, bits)


def _largest_threshold(order: Int[Array, "*batch V"], weight: Array, least_weight: Array) -> Int[Array, "*batch"]:
    """Returns the largest threshold that entries of at least this weight together reach.

    Bisecting the threshold takes 32 sums over the entries; sorting takes ten times as long on a CPU, and a sort or a
    top-k of a large vocabulary is slow on a TPU.

    Args:
      order: integers to be compared with the threshold.
      weight: of each entry, at least 0, or of all entries.
      least_weight: `[*batch]`, axes of 1 repeated; where all entries together do not reach it, the threshold lets all
        pass.
    """
    bounds = jnp.iinfo(jnp.int32)
    zero = jnp.zeros((), weight.dtype)

    def halve(_: Int[Array, ""], span: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = span
        middle = (low >> 1) + (high >> 1) + ((low | high) & 1)  # Rounded up, and free of overflow.
        reached = jnp.where(order >= middle[..., None], weight, zero).sum(-1, dtype=weight.dtype) >= least_weight
        return jnp.where(reached, middle, low), jnp.where(reached, high, middle - 1)

    low = jnp.full(order.shape[:-1], bounds.min, jnp.int32)
    high = jnp.full(order.shape[:-1], bounds.max, jnp.int32)
    return jax.lax.fori_loop(0, 32, halve, (low, high))[0]


def mark_highest(
    scores: Float[Array, "*batch V"], candidates: Bool[Array, "*#batch V"], count: Int[Array, "*#batch"]
) -> Bool[Array, "*batch V"]:
    """Marks the `count` candidates with the highest scores; of equal ones the first.

    Args:
      scores: finite where there is a candidate.
      candidates: what may be marked; axes of 1 are repeated.
      count: where there are fewer candidates, all are marked.
    """
    order = _in_order(jnp.where(candidates, scores, -jnp.inf))
    least = _largest_threshold(order, jnp.int32(1), count)[..., None]
    above, equal = (order > least) & candidates, (order == least) & candidates
    left = count[..., None] - above.sum(-1, keepdims=True, dtype=jnp.int32)
    return above | (equal & (jnp.cumsum(equal, axis=-1, dtype=jnp.int32) <= left))
