"""Copies of chosen pages from a TPU's main memory, several at once, into buffers that are read in turn."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

TOGETHER = 8
"""Pages whose copies are started side by side, and waited for together."""


@dataclasses.dataclass(frozen=True)
class Copies:
    """Copies of a step's pages from the cache, into one of two buffers.

    Attributes:
      head, block_of: of each step, its KV head counted over all rows, and which of that head's blocks it takes.
      count, table: of each set, how many pages it has, and which.
      channels: what is copied: keys, values, and scales where there are any. Of each, where it lies in the cache, the
        buffers, and whether slots are its last axis.
      arrived: a semaphore for each buffer.
      size: slots of a page.
      sets: of a row.
      block_pages: pages of a block.
    """

    head: Any
    block_of: Any
    count: Any
    table: Any
    channels: tuple[tuple[Any, Any, bool], ...]
    arrived: Any
    size: int
    sets: int
    block_pages: int

    @property
    def kv_heads(self) -> int:
        """K."""
        return self.channels[0][0].shape[1]

    def pages_at(self, step: Array) -> tuple[Array, Array]:
        """Returns where in the table a step's pages begin, and how many there are."""
        which, first = set_of(self.head[step], self.sets, self.kv_heads), self.block_of[step] * self.block_pages
        most = self.table.shape[0] // self.count.shape[0]
        return which * most + first, jnp.clip(self.count[which] - first, 0, self.block_pages)

    def clear(self) -> None:
        """Fills values and scales with zeros.

        A block with few pages leaves what was there before: old ones, and never NaN, which no weight of 0 hides.
        """

        def clear(i: Array, _: None) -> None:
            for _, target, last in self.channels[1:]:
                part = _part(target, slice(None), _slots(i, 1, self.size), last)
                part[...] = jnp.zeros(part.shape, part.dtype)

        jax.lax.fori_loop(0, self.block_pages, clear, None)

    def fetch(self, step: Array, buffer: Array) -> None:
        """Starts to copy a step's pages, each behind the one before."""
        kv_heads = jnp.int32(self.kv_heads)
        row, kv_head = jax.lax.div(self.head[step], kv_heads), jax.lax.rem(self.head[step], kv_heads)
        first, many = self.pages_at(step)

        def copy(i: Array, pages: int) -> None:
            for j in range(pages):
                at = _slots(self.table[first + i + j], 1, self.size)
                for source, target, last in self.channels:
                    read = source.at[row, kv_head, :, at] if last else source.at[row, kv_head, at]
                    write = _part(target, buffer, _slots(i + j, 1, self.size), last)
                    pltpu.make_async_copy(read, write, self.arrived.at[buffer]).start()

        _by_several(many, min(TOGETHER, self.block_pages), copy)

    def wait(self, step: Array, buffer: Array) -> None:
        """Waits for a step's pages: for as many bytes as they have."""

        def arrive(i: Array, pages: int) -> None:
            for _, target, last in self.channels:
                part = _part(target, buffer, _slots(i, pages, self.size), last)
                pltpu.make_async_copy(part, part, self.arrived.at[buffer]).wait()

        _by_several(self.pages_at(step)[1], min(TOGETHER, self.block_pages), arrive)


def _by_several(many: Array, together: int, act: Callable[[Array, int], None]) -> None:
    """Acts on so many pages, on several at once as long as there are: a short loop's own instructions add up.

    Args:
      many: pages.
      together: pages at once.
      act: on the first page and the number of pages.
    """
    groups = jax.lax.div(many, jnp.int32(together))
    jax.lax.fori_loop(0, groups, lambda i, _: act(i * together, together), None)
    jax.lax.fori_loop(groups * together, many, lambda i, _: act(i, 1), None)


def _slots(page: Array, pages: int, size: int) -> Any:
    return pl.ds(pl.multiple_of(page * size, size), pages * size)


def _part(held: Any, buffer: Any, slots: Any, slots_last: bool) -> Any:
    return held.at[buffer, :, slots] if slots_last else held.at[buffer, slots]


def set_of(head: Any, sets: int, kv_heads: int) -> Any:
    """Returns the set of pages of a KV head, counted over all rows as the heads are."""
    return head if sets > 1 or kv_heads == 1 else jax.lax.div(head, jnp.int32(kv_heads))
