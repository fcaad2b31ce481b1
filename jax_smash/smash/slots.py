"""Packed rows of tokens as rows of slots, one slot a group."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Block
from jax_smash.protocols import CausalLM
from jax_smash.pytree import pytree
from jax_smash.smash.smasher import Smasher


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

    def given(self) -> Bool[Array, "B S J"]:
        """Marks the tokens that there are."""
        return jnp.arange(self.tokens.shape[-1], dtype=jnp.int32)[None, None] < self.count[:, :, None]

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


def slots_of(
    tokens: Int[Array, "B T"],
    place: Int[Array, "B T"],
    position: Int[Array, "B T"],
    segments: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    *,
    micro_steps: int,
    slots: int | None = None,
) -> Slots:
    """Returns packed rows of tokens as rows of slots.

    Args:
      tokens: ids, several documents to a row.
      place: of each token in its group, from 0: a token at place 0 begins a group.
      position: index of each token in its document.
      segments: documents of a row, from 1; 0 in padding. No group may reach over a document's end.
      weights: what each token counts as a target.
      micro_steps: J; no place may be larger than J − 1.
      slots: S; None makes as many as tokens. What does not fit is left out, from the end.
    """
    batch, width = tokens.shape
    size = width if slots is None else slots
    inside = segments > 0
    slot = jnp.cumsum((inside & (place == 0)).astype(jnp.int32), axis=1) - 1
    # Out of range is dropped: padding, and what does not fit.
    slot = jnp.where(inside, slot, size)
    row = jnp.arange(batch, dtype=jnp.int32)[:, None]
    empty = jnp.zeros((batch, size), jnp.int32)

    def by_token(x: Array) -> Array:
        return jnp.zeros((batch, size, micro_steps), x.dtype).at[row, slot, place].set(x, mode="drop")

    return Slots(
        tokens=by_token(tokens),
        count=empty.at[row, slot].add(inside.astype(jnp.int32), mode="drop"),
        position=empty.at[row, slot].max(position, mode="drop"),
        segments=empty.at[row, slot].max(segments, mode="drop"),
        weights=by_token(weights),
    )


def slot_inputs(base: CausalLM, smasher: Smasher, slots: Slots) -> Float[Array, "B S D"]:
    """Returns the base's input vectors of rows of slots."""
    return smasher.fuse(group_vectors(base, slots.tokens), slots.count)


def group_vectors(base: CausalLM, tokens: Int[Array, "B S J"]) -> Float[Array, "B S J D"]:
    """Returns the base's vector of every token of rows of groups."""
    vectors = base.embed(tokens.reshape(tokens.shape[0], -1))
    return vectors.reshape(*tokens.shape, vectors.shape[-1])
