"""The tokens that each row's cache holds, for drafters that look things up in them."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from jax_smash.pytree import pytree, replace

NOTHING = -1
"""Token of a place that is not there."""

BEFORE = -2
"""Token before the first; unlike `NOTHING`, so that what is not there agrees with nothing."""


@pytree
class Text:
    """What each row has read and kept, the pending token left out: it is added when it enters the cache.

    Attributes:
      token: by index in the row's sequence; anything from `length` on.
      length: tokens held.
    """

    token: Int[Array, "B S"]
    length: Int[Array, "B"]

    @classmethod
    def empty(cls, batch: int, slots: int) -> "Text":
        """Makes rows that have read nothing and can hold as many tokens as the cache has slots."""
        return cls(token=jnp.zeros((batch, slots), jnp.int32), length=jnp.zeros((batch,), jnp.int32))

    def extended(self, token: Int[Array, "B P"], count: Int[Array, "B"]) -> "Text":
        """Returns the text with the first `count` tokens behind it."""
        place = jnp.arange(token.shape[1], dtype=jnp.int32)[None]
        # Past the end is dropped.
        index = jnp.where(place < count[:, None], self.length[:, None] + place, self.token.shape[1])
        rows = jnp.arange(token.shape[0], dtype=jnp.int32)[:, None]
        return replace(
            self, token=self.token.at[rows, index].set(token.astype(jnp.int32), mode="drop"), length=self.length + count
        )

    def ending(self, count: int) -> Int[Array, "B {count}"]:
        """Returns the last tokens, the last one first; `NOTHING` where the text is shorter."""
        index = self.length[:, None] - 1 - jnp.arange(count, dtype=jnp.int32)[None]
        token = jnp.take_along_axis(self.token, jnp.maximum(index, 0), axis=1)
        return jnp.where(index >= 0, token, NOTHING)

    def matches(self, upto: int) -> Int[Array, "B S"]:
        """Returns how far the text up to and with each place agrees with the text's own end, read backwards.

        Args:
          upto: no more tokens are compared; at least 1.

        Returns:
          The number of equal tokens, from 0 to `upto`; anything from the last place on.
        """
        ending, agrees, count = self.ending(upto), None, None
        for steps in range(upto):
            # Shifted, so that each place meets the token that stands `steps` before it.
            before = jnp.pad(self.token, ((0, 0), (steps, 0)), constant_values=BEFORE)[:, : self.token.shape[1]]
            same = before == ending[:, steps, None]
            agrees = same if agrees is None else agrees & same
            count = agrees.astype(jnp.int32) if count is None else count + agrees.astype(jnp.int32)
        assert count is not None
        return count

    def latest(self, length: Int[Array, "B S"], count: int) -> tuple[Int[Array, "B R"], Int[Array, "B R"]]:
        """Returns the places where most tokens agree, of equal ones the later first.

        Args:
          length: agreeing tokens of each place.
          count: R, places to return.

        Returns:
          The places and how much agrees there; 0 where there are no more places.
        """
        slots = self.token.shape[1]
        place = jnp.arange(slots, dtype=jnp.int32)[None]
        # One number for both: the highest length that still leaves room for the place.
        length = jnp.minimum(length, jnp.iinfo(jnp.int32).max // slots - 1)
        key = jnp.where((place < self.length[:, None] - 1) & (length > 0), length * slots + place, 0)
        found = largest(key, count)
        return found % slots, found // slots

    def following(self, place: Int[Array, "B R"], levels: int) -> Int[Array, "B R levels"]:
        """Returns the tokens behind each place; those behind the text's end are as if it repeated from the place on.

        Args:
          place: indices before that of the last token.
          levels: tokens a place.
        """
        period = jnp.maximum(self.length[:, None] - 1 - place, 1)
        ahead = jnp.arange(levels, dtype=jnp.int32)[None, None] % period[:, :, None]
        index = (place[:, :, None] + 1 + ahead).reshape(place.shape[0], -1)
        return jnp.take_along_axis(self.token, index, axis=1).reshape(*place.shape, levels)


def largest(key: Int[Array, "B S"], count: int) -> Int[Array, "B {count}"]:
    """Returns the largest numbers of each row, the largest first, none twice but 0, which also fills up; none below 0.

    On a CPU 16 maxima of 2,048 numbers take 15 us, where `top_k` takes 200.
    """
    found = [key.max(1, keepdims=True)]
    for _ in range(count - 1):
        found.append(jnp.where(key < found[-1], key, 0).max(1, keepdims=True))
    return jnp.concatenate(found, axis=1)
