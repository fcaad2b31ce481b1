"""What rows read while nothing was drafted, kept until the drafter learns from it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Block
from jax_smash.decode.budget import ROUND_STEPS
from jax_smash.draft.context import Seen
from jax_smash.protocols import CausalLM, Needs
from jax_smash.pytree import pytree, replace

NOTHING = -1
"""Marks a place of `Missed.token` without a token."""


@pytree
class Missed:
    """Tokens that were read in steps without drafts, of at most one round, and what the target made of them.

    Attributes:
      token: ids in order, padded with −1.
      hidden, taps: of each token, as in `Seen`. Those that the drafter does not need have no width.
    """

    token: Int[Array, "B P"]
    hidden: Float[Array, "B P _"]
    taps: tuple[Float[Array, "B P _"], ...]

    @property
    def some(self) -> Bool[Array, ""]:
        """Some row has missed a token."""
        return (self.token != NOTHING).any()

    @property
    def count(self) -> Int[Array, "B"]:
        """Tokens that each row has missed."""
        return (self.token != NOTHING).sum(1, dtype=jnp.int32)

    def with_read(
        self,
        token: Int[Array, "B"],
        there: Bool[Array, "B"],
        hidden: Float[Array, "B 1 D"],
        taps: tuple[Float[Array, "B 1 D"], ...],
    ) -> Missed:
        """Returns this with a step's token behind those before.

        Args:
          token: that was read.
          there: False for a row that read none.
          hidden, taps: what the target made of it.
        """
        place = jnp.arange(self.token.shape[1], dtype=jnp.int32)[None]
        here = (place == self.count[:, None]) & there[:, None]

        def put(new: Array, old: Array) -> Array:
            return jnp.where(here[:, :, None], new, old) if old.shape[2] else old

        return Missed(
            token=jnp.where(here, token[:, None], self.token),
            hidden=put(hidden, self.hidden),
            taps=tuple(map(put, taps, self.taps)) if self.taps else (),
        )

    def emptied(self) -> Missed:
        """Returns this without its tokens."""
        return replace(self, token=jnp.full_like(self.token, NOTHING))

    def seen(self, read: Int[Array, "B"]) -> Seen:
        """Returns it as a piece of a prompt.

        Args:
          read: tokens that the target has read of each row up to the last of these.
        """
        place = jnp.arange(self.token.shape[1], dtype=jnp.int32)[None]
        return Seen(
            token=jnp.maximum(self.token, 0),
            valid=self.token != NOTHING,
            position=(read - self.count)[:, None] + place,
            hidden=self.hidden,
            taps=self.taps,
        )


def nothing_missed(model: CausalLM, needs: Needs, batch: int) -> Missed:
    """Returns what rows have missed that have read nothing without a draft.

    Args:
      model: the target.
      needs: what the drafter needs of it.
      batch: rows.
    """
    token = jnp.full((batch, ROUND_STEPS), NOTHING, jnp.int32)
    if not (needs.hidden or needs.taps):
        return Missed(token=token, hidden=jnp.zeros((*token.shape, 0)), taps=())

    def forward() -> tuple[Any, Any]:
        position = jnp.zeros((batch, 1), jnp.int32)
        cache, block = model.init_cache(batch, 16, 1), Block.causal(jnp.ones((batch, 1), bool))
        out = model.forward(model.embed(position), position, cache, block)
        return out.hidden, out.taps

    def room(made: Any, wanted: bool) -> Array:
        return jnp.zeros((*token.shape, made.shape[-1] if wanted else 0), made.dtype)

    hidden, taps = jax.eval_shape(forward)
    kept = tuple(room(tap, i in needs.taps) for i, tap in enumerate(taps)) if needs.taps else ()
    return Missed(token=token, hidden=room(hidden, needs.hidden), taps=kept)
