"""The new entries of a forward: how they see each other, and what the forward makes of them."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jax_smash.pytree import pytree, replace, static


@pytree
class SideBySide:
    """Keys and values of a block's entries, in place of a pair of them: as a TPU's layers make them, in one array.

    Apart from each other, all of them would be laid out anew. So only those that are committed are taken apart.

    Attributes:
      pairs: each KV head's key and value.
    """

    pairs: Float[Array, "B T K 2 H"]

    def __iter__(self) -> Iterator[Float[Array, "B T K H"]]:
        yield self.pairs[..., 0, :]
        yield self.pairs[..., 1, :]


@pytree
class Noted:
    """Keys and values of a block's entries, and what a policy of a sparse cache notes of how they attended.

    Attributes:
      entries: the keys and values, as without notes.
      note: a `cache.selected.Note`.
    """

    entries: Any
    note: Any

    def __iter__(self) -> Iterator[Float[Array, "B T K H"]]:
        return iter(self.entries)


KeyValue = tuple[Any, Any] | SideBySide | Noted
"""Keys and values that a layer made, each `[B, T, K, H]`."""

BlockKV = tuple[KeyValue, ...]
"""Those that a forward made, a layer's behind another's."""


@pytree
class Earlier:
    """Entries of a block that earlier forwards have read, and that are in no cache yet.

    Attributes:
      block_kv: keys and values of these entries, a pair a layer, or what stands in their place.
      position: of each entry.
    """

    block_kv: Any
    position: Int[Array, "B E"]


@pytree
class Block:
    """How the T entries of one forward see each other, and the E entries before them that are not in the cache.

    Attributes:
      valid: False at padding, which nothing sees and nothing commits; earlier entries first.
      ancestors: bit j of entry i is set where entry i sees entry j, itself included, packed 32 to a word; None means
        causal.
      segments: entries see only entries of their own segment (documents packed in a row); None where all are one.
      earlier: what earlier forwards over the same block have read; None where E is 0.
      prompt: the entries are a piece of a prompt, which a sparse cache may read otherwise than what is decoded.
    """

    valid: Bool[Array, "B all"]
    ancestors: UInt32[Array, "B T W"] | None = None
    segments: Int[Array, "B all"] | None = None
    earlier: Earlier | None = None
    prompt: bool = static(default=False)

    @classmethod
    def causal(
        cls, valid: Bool[Array, "B T"], segments: Int[Array, "B T"] | None = None, *, prompt: bool = False
    ) -> "Block":
        """Makes a block in which each entry sees itself and the entries before it, in its own segment."""
        return cls(valid=valid, ancestors=None, segments=segments, prompt=prompt)

    def layer(self, layer: int) -> "Block":
        """Returns the block as one layer sees it: of the earlier entries, only its own keys and values."""
        if self.earlier is None:
            return self
        return replace(self, earlier=replace(self.earlier, block_kv=(self.earlier.block_kv[layer],)))

    def behind_earlier(
        self, key: Float[Array, "B T K H"], value: Float[Array, "B T K H"], position: Int[Array, "B T"]
    ) -> tuple[Float[Array, "B all K H"], Float[Array, "B all K H"], Int[Array, "B all"]]:
        """Returns one layer's keys, values and positions of the earlier entries and the new ones."""
        if self.earlier is None:
            return key, value, position
        (before,), made = self.earlier.block_kv, (key, value)
        keys, values = (jnp.concatenate(pair, axis=1) for pair in zip(before, made, strict=True))
        return keys, values, jnp.concatenate([self.earlier.position, position], axis=1)

    def mask(self) -> Bool[Array, "B T all"]:
        """Returns which entry (last axis) each new entry (middle axis) sees."""
        width = self.valid.shape[1]
        if self.ancestors is None:
            new = width if self.earlier is None else width - self.earlier.position.shape[1]
            seen = jnp.tril(jnp.ones((width, width), bool))[None, width - new :]
        else:
            entry = jnp.arange(width, dtype=jnp.uint32)
            words = self.ancestors[:, :, entry // 32]
            seen = ((words >> (entry % 32)[None, None]) & 1).astype(bool)
        if self.segments is not None:
            seen &= self.segments[:, -seen.shape[1] :, None] == self.segments[:, None, :]
        return seen & self.valid[:, None, :]

    def parents(self) -> Int[Array, "B T"]:
        """Returns the last other new entry that each new entry sees; −1 where it sees none.

        In a tree that is its parent, for parents stand before their children.
        """
        seen = self.mask()
        width = seen.shape[1]
        entry = jnp.arange(width, dtype=jnp.int32)
        before = seen[:, :, -width:] & (entry[None] < entry[:, None])[None]
        return jnp.where(before, entry[None, None], -1).max(-1)
