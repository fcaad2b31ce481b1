"""Processors that shape the distribution a token is drawn from. They come last, in the order of this file."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.pytree import pytree
from jax_smash.sampling.choice import highest
from jax_smash.sampling.stateless import Stateless
from jax_smash.threshold import in_order, largest_threshold


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
        order = in_order(logits)
        least = largest_threshold(order, jnp.ones((1, 1, 1), jnp.int32), k[:, None])
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
        order = in_order(logits)
        probability = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
        least = largest_threshold(order, probability, self.p[:, None])
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
