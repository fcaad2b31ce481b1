"""Codes of the grams that a row used last, in a table of fixed size."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.pytree import pytree

EMPTY = -2
"""In place of the tokens of a gram: nothing has been kept there."""


@pytree
class GramCache:
    """Grams and their codes, of each row. When it is full, the gram that was used longest ago is replaced.

    Source: Zeng et al. 2024, "Chimera", sections 4.1.1 and 5.4.1.
    Differs: there is no secondary storage, for a program has none; the code of a gram that has left is made again. It
    begins empty, where the paper's begins with common grams. A gram counts as used, and is kept, when its last token is
    emitted or read: those of drafted nodes are looked up alone, where the paper keeps every new trigram that it meets.
    Codes are looked up or made for all rows at once, so it saves work only where every gram of a forward is found.

    Attributes:
      gram: the tokens of each; `EMPTY` where there is none.
      code: of each.
      used: when each was used last, counted in uses; 0 where there is none.
      uses: of all.
    """

    gram: Int[Array, "B C g"]
    code: Float[Array, "B C D"]
    used: Int[Array, "B C"]
    uses: Int[Array, "B"]

    @classmethod
    def empty(cls, batch: int, slots: int, gram: int, width: int, dtype: Any) -> "GramCache":
        """Makes room for so many grams of so many tokens, and codes of this width."""
        return cls(
            gram=jnp.full((batch, slots, gram), EMPTY, jnp.int32),
            code=jnp.zeros((batch, slots, width), dtype),
            used=jnp.zeros((batch, slots), jnp.int32),
            uses=jnp.zeros((batch,), jnp.int32),
        )

    def codes(
        self, grams: Int[Array, "B T g"], wanted: Bool[Array, "B T"], make: Callable[[Any], Float[Array, "B T D"]]
    ) -> Float[Array, "B T D"]:
        """Returns the codes of grams: those that are kept, or, where one that is wanted is missing, all anew.

        Args:
          grams: tokens.
          wanted: False where any code will do.
          make: from grams to codes.
        """
        same = (grams[:, :, None] == self.gram[:, None]).all(-1)
        slot = jnp.argmax(same, axis=-1)
        found = jnp.all(same.any(-1) | ~wanted)

        def kept(_: Any) -> Float[Array, "B T D"]:
            return jnp.take_along_axis(self.code, slot[..., None], axis=1)

        return jax.lax.cond(found, kept, make, grams)

    def learned(self, grams: Int[Array, "B T g"], codes: Float[Array, "B T D"], count: Int[Array, "B"]) -> "GramCache":
        """Returns the cache after each row has used its first so many grams, one after the other."""
        row = jnp.arange(len(count), dtype=jnp.int32)
        there = jnp.arange(grams.shape[1], dtype=jnp.int32)[:, None] < count[None]

        def use(cache: GramCache, entry: tuple[Array, Array, Array]) -> tuple[GramCache, None]:
            gram, code, there = entry
            same = (cache.gram == gram[:, None]).all(-1)
            slot = jnp.where(same.any(1), jnp.argmax(same, axis=1), jnp.argmin(cache.used, axis=1)).astype(jnp.int32)
            slot = jnp.where(there, slot, cache.used.shape[1])
            uses = cache.uses + there.astype(jnp.int32)
            # What is written behind the last slot is dropped.
            return GramCache(
                gram=cache.gram.at[row, slot].set(gram, mode="drop"),
                code=cache.code.at[row, slot].set(code, mode="drop"),
                used=cache.used.at[row, slot].set(uses, mode="drop"),
                uses=uses,
            ), None

        return jax.lax.scan(use, self, (grams.swapaxes(0, 1), codes.swapaxes(0, 1), there))[0]
