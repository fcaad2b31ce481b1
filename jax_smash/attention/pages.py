"""Attention over chosen pages: a kernel reads them from the cache where it can; elsewhere they are gathered."""

import functools

from jaxtyping import Array, Float, Int

from jax_smash.attention.by_head import attend_by_head, gather_pages, hide_other_pages
from jax_smash.attention.dispatch import by_platform, takes_xla
from jax_smash.cache import Block, ChosenPages, LayerCache


def attend_pages(
    query: Float[Array, "B Q N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    position: Int[Array, "B T"],
    cache: LayerCache,
    pages: ChosenPages,
    block: Block,
    *,
    scale: float,
    softcap: float = 0.0,
    implementation: str | None = None,
) -> Float[Array, "B Q N H"]:
    """Returns attention of each entry over the filled slots of its KV head's pages, and the entries that it may see.

    Equivalent formula: softmax(cap(scale · q kᵀ) + mask) v over the concatenation of pages and block, in float32.

    Args:
      query, key, value, position, block, scale, softcap: as of `attend`.
      cache: what the layer has committed; every entry is behind all of it.
      pages: which of its pages are read.
      implementation: as of `attend`. `xla` gathers the pages first, which writes and reads them once more.

    Raises:
      ValueError: there is no such implementation, or the kernel that is named cannot run here.
    """
    arrays = (query, key, value, position, cache, pages, block)
    xla = functools.partial(_gathered, scale=scale, softcap=softcap)
    if takes_xla(implementation):
        return xla(*arrays)
    from jax_smash.attention import kernels  # Importing Pallas takes most of a second.
    from pallas_kernels.tree_attention.tpu import slots_lie_last

    by_kernel = functools.partial(kernels.attend_pages, scale=scale, softcap=softcap)
    hidden = functools.partial(_hidden, scale=scale, softcap=softcap)
    otherwise = {"tpu": hidden} if slots_lie_last(*cache.keys.shape[2:]) else {}
    return by_platform(arrays, xla, by_kernel, kernels.refusal_of_pages, implementation, otherwise)


def _gathered(
    query: Float[Array, "B Q N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    position: Int[Array, "B T"],
    cache: LayerCache,
    pages: ChosenPages,
    block: Block,
    *,
    scale: float,
    softcap: float,
) -> Float[Array, "B Q N H"]:
    gathered = gather_pages(cache.keys, cache.values, pages)
    return attend_by_head(query, key, value, position, gathered, block, scale=scale, softcap=softcap)


def _hidden(
    query: Float[Array, "B Q N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    position: Int[Array, "B T"],
    cache: LayerCache,
    pages: ChosenPages,
    block: Block,
    *,
    scale: float,
    softcap: float,
) -> Float[Array, "B Q N H"]:
    """Attends to the cache, all other pages hidden: where slots lie along lanes, to gather pages would copy it."""
    there = hide_other_pages(cache.position, pages, key.shape[2])
    seen = (cache.keys, cache.values, there)
    return attend_by_head(query, key, value, position, seen, block, scale=scale, softcap=softcap)
