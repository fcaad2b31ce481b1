"""What the micro-step decoder goes on from: one entry of a forward of the base."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.protocols import CausalLM
from jax_smash.pytree import pytree
from jax_smash.smash.smasher import Smasher


@pytree
class Entry:
    """What the base computed for one entry of each row.

    Attributes:
      prefix: its tapped vectors, from `Smasher.prefix`.
      hidden: its final hidden state, which the stop head reads for a group's first token.
    """

    prefix: Float[Array, "B taps D"]
    hidden: Float[Array, "B D"]


def empty_entry(base: CausalLM, smasher: Smasher, batch: int) -> Entry:
    """Makes the entry of rows that have read nothing."""
    vector = jax.eval_shape(base.embed, jax.ShapeDtypeStruct((batch, 1), jnp.int32))
    shape = (batch, len(smasher.config.tapped_layers), vector.shape[-1])
    return Entry(prefix=jnp.zeros(shape, vector.dtype), hidden=jnp.zeros(shape[::2], vector.dtype))


def entry_at(
    smasher: Smasher, taps: tuple[Float[Array, "B T D"], ...], hidden: Float[Array, "B T D"], place: Int[Array, "B"]
) -> Entry:
    """Returns one entry a row of a forward of the base.

    Args:
      smasher: names the tapped layers.
      taps, hidden: of the forward.
      place: index of the entry in its row.
    """

    def pick(x: Float[Array, "B T D"]) -> Float[Array, "B 1 D"]:
        return jnp.take_along_axis(x, place[:, None, None], axis=1)

    taps, hidden = tuple(map(pick, taps)), pick(hidden)
    return Entry(prefix=smasher.prefix(taps, hidden)[:, 0], hidden=hidden[:, 0])


def last_entry(
    smasher: Smasher,
    before: Entry,
    valid: Bool[Array, "B T"],
    taps: tuple[Float[Array, "B T D"], ...],
    hidden: Float[Array, "B T D"],
) -> Entry:
    """Returns each row's last entry after a piece of the prompts: that of `before` where the piece had nothing for it.

    Args:
      smasher: names the tapped layers.
      before: the last entry of the pieces before.
      valid: False at padding, which stands on the right.
      taps, hidden: of the forward over the piece.
    """
    count = valid.sum(axis=1, dtype=jnp.int32)
    last = entry_at(smasher, taps, hidden, jnp.maximum(count - 1, 0))
    return chosen_entry(count > 0, last, before)


def chosen_entry(marked: Bool[Array, "B"], one: Entry, other: Entry) -> Entry:
    """Returns `one` for the rows that are marked, and `other` for those that are not."""
    return Entry(
        prefix=jnp.where(marked[:, None, None], one.prefix, other.prefix),
        hidden=jnp.where(marked[:, None], one.hidden, other.hidden),
    )
