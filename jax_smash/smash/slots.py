"""Rows of slots, each with the tokens of a group."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block
from jax_smash.protocols import CausalLM
from jax_smash.pytree import pytree


@pytree
class Following:
    """What each slot predicts: the tokens of the next slot of its document.

    Attributes:
      tokens: 0 behind the first `count`.
      count: tokens of the next group; 0 where the document ends, and in padding.
      weights: what each counts as a target; 0 behind the first `count`.
    """

    tokens: Int[Array, "B S J"]
    count: Int[Array, "B S"]
    weights: Float[Array, "B S J"]

    def ends(self) -> Float[Array, "B S J"]:
        """Returns the stop head's target at each token: 1 at a group's last, else 0."""
        place = jnp.arange(self.tokens.shape[-1], dtype=jnp.int32)[None, None]
        return (place == self.count[:, :, None] - 1).astype(jnp.float32)


@pytree
class Slots:
    """Rows of slots, several documents to a row: the entries of one forward of the base, T = S.

    A token, its slot and its position are three things: S slots hold up to S · J tokens, slots lie side by side, and a
    slot's position is the index of its group's *last* token in the document, so positions jump by a group's size.

    Attributes:
      tokens: of each group, in order; 0 behind the first `count`.
      count: tokens of each group, 1 to J; 0 in padding.
      position: rotary position; 0 in padding.
      segments: documents of a row, from 1; 0 in padding.
      weights: what each token counts as a target; 0 behind the first `count`.
    """

    tokens: Int[Array, "B S J"]
    count: Int[Array, "B S"]
    position: Int[Array, "B S"]
    segments: Int[Array, "B S"]
    weights: Float[Array, "B S J"]

    @property
    def block(self) -> Block:
        """How the slots see each other: those before, of their own document. Windows compare positions, not slots."""
        return Block.causal(self.segments > 0, self.segments)

    def following(self) -> Following:
        """Returns what each slot predicts."""
        behind = jnp.pad(self.segments[:, 1:], ((0, 0), (0, 1)))
        same = (behind == self.segments) & (self.segments > 0)

        def shifted(x: Array) -> Array:
            moved = jnp.pad(x[:, 1:], ((0, 0), (0, 1)) + ((0, 0),) * (x.ndim - 2))
            return jnp.where(same.reshape(same.shape + (1,) * (x.ndim - 2)), moved, jnp.zeros((), x.dtype))

        return Following(tokens=shifted(self.tokens), count=shifted(self.count), weights=shifted(self.weights))


def group_vectors(base: CausalLM, tokens: Int[Array, "B S J"]) -> Float[Array, "B S J D"]:
    """Returns the base's vector of every token of rows of groups."""
    vectors = base.embed(tokens.reshape(tokens.shape[0], -1))
    return vectors.reshape(*tokens.shape, vectors.shape[-1])
