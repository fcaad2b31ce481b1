"""What sparse attention reads beside the inputs of tree attention: which pages of the cache were chosen."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.tree_attention import inputs as tree
from pallas_kernels.tree_attention.inputs import Inputs

LEAST_PAGE, MOST_PAGE = 16, 128
"""Slots of a page: a smaller one is less than a tile of bfloat16, and a larger one chooses too coarsely."""


class Pages(NamedTuple):
    """The pages that are read. Page i of Z slots holds the cache's slots i · Z to i · Z + Z - 1.

    Attributes:
      table: page numbers in any order, none of them twice; the newest page last by convention. A set for each KV head,
        or one that all KV heads share (the second axis is then 1). Behind its count it may hold anything.
      counts: how many pages of each set are read; at most P.
      filled: number of filled slots in each set, counted page by page: every valid entry sees these, and the others
        are empty. Then no positions of slots are looked up. None where the caller does not know; there must be no
        window.
      scales: what the numbers of an int8 cache are multiplied by: those of slot s's key by `[b, k, 0, s]`, those of its
        value by `[b, k, 1, s]`. Finite, at empty slots too. None where the cache has the query's type.
    """

    table: Int[Array, "B Sets P"]
    counts: Int[Array, "B Sets"]
    filled: Int[Array, "B Sets"] | None = None
    scales: Float[Array, "B K 2 S"] | None = None


@dataclasses.dataclass(frozen=True)
class Options(tree.Options):
    """The numbers of one call, fixed when it is compiled: those of tree attention, and the size of a page.

    Attributes:
      page_size: slots of a page, Z.
    """

    page_size: int = MOST_PAGE


def unfit(page_size: int, slots: int) -> str | None:
    """Returns why pages of this size cannot be read of a cache with so many slots; None where they can."""
    if LEAST_PAGE <= page_size <= MOST_PAGE and not page_size & (page_size - 1) and not slots % page_size:
        return None
    return (
        f"page_size must be a power of two from {LEAST_PAGE} to {MOST_PAGE} that divides {slots} slots; got {page_size}"
    )


def check(inputs: Inputs, pages: Pages, options: Options) -> None:
    """Refuses arrays that do not belong together.

    Raises:
      ValueError: shapes disagree, or an option is out of range.
      TypeError: an array has another type than it must.
    """
    _check_scales(inputs, pages.scales)
    tree.check(inputs, options, cached=None if pages.scales is None else jnp.int8)
    batch, kv_heads, slots = inputs.keys.shape[:3]
    if why := unfit(options.page_size, slots):
        raise ValueError(why)
    shape = pages.table.shape
    if len(shape) != 3 or shape[0] != batch or shape[1] not in (1, kv_heads) or not shape[2]:
        raise ValueError(f"table must be ({batch}, {kv_heads} or 1, pages); got {shape}")
    given = {name: x for name in ("table", "counts", "filled") if (x := getattr(pages, name)) is not None}
    for name in ("counts", "filled"):
        if name in given and given[name].shape != shape[:2]:
            raise ValueError(f"{name} must be {shape[:2]} beside a table of {shape}; got {given[name].shape}")
    if pages.filled is not None and options.window:
        raise ValueError(f"filled must be None with a window, which compares positions; got window {options.window}")
    for name, array in given.items():
        if array.dtype != jnp.int32:
            raise TypeError(f"{name} must be int32; got {array.dtype}")


def _check_scales(inputs: Inputs, scales: Float[Array, "..."] | None) -> None:
    """Refuses int8 without scales, and scales that are not those of a cache of int8."""
    for name in ("keys", "values"):
        dtype = getattr(inputs, name).dtype
        if scales is None and dtype == jnp.int8:
            raise ValueError(f"scales must be given where {name} are int8; got None")
        if scales is not None and dtype != jnp.int8:
            raise TypeError(f"{name} must be int8 where scales are given; got {dtype}")
    if scales is None:
        return
    keys = inputs.keys.shape
    if scales.shape != (shape := (*keys[:2], 2, *keys[2:3])):
        raise ValueError(f"scales must be {shape} beside keys of {inputs.keys.shape}; got {scales.shape}")
    if scales.dtype != jnp.float32:
        raise TypeError(f"scales must be float32; got {scales.dtype}")
