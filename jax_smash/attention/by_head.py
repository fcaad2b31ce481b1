"""Attention over slots that differ from one KV head to another, gathered beside each other."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.attention.dispatch import attend
from jax_smash.cache import EMPTY, Block, ChosenPages, LayerCache
from jax_smash.cache.selected import take_pages
from jax_smash.cache.store import HEADS, ROWS
from jax_smash.sharding import on_each_device

Gathered = tuple[Float[Array, "B K C H"], Float[Array, "B K C H"], Int[Array, "B K C"]]
"""Keys, values and positions of chosen slots; `EMPTY` where none is read."""


def attend_by_head(
    query: Float[Array, "B Q N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    position: Int[Array, "B T"],
    gathered: Gathered,
    block: Block,
    *,
    scale: float,
    softcap: float,
) -> Float[Array, "B Q N H"]:
    """Attends as if each KV head were a row, each device for its own rows and KV heads."""
    grouped = query.reshape(*query.shape[:2], key.shape[2], -1, query.shape[3])
    share = functools.partial(_attend_share, scale=scale, softcap=softcap)
    heads = ("batch", None, "kv_heads")
    out = on_each_device(share, (grouped, heads), ((key, value), heads), ((position, block), ROWS), (gathered, HEADS))
    return out.reshape(query.shape)


def _attend_share(
    query: Float[Array, "B Q K G H"],
    own: tuple[Float[Array, "B T K H"], Float[Array, "B T K H"]],
    rows_of: tuple[Int[Array, "B T"], Block],
    gathered: Gathered,
    *,
    scale: float,
    softcap: float,
) -> Float[Array, "B Q K G H"]:
    (rows, _, kv_heads, _, size), (key, value) = query.shape, own

    def by_row(x: Array) -> Array:
        return x.swapaxes(1, 2).reshape(rows * kv_heads, x.shape[1], -1, size)

    def each(x: Array) -> Array:
        return jnp.repeat(x, kv_heads, axis=0)

    keys, values, there = gathered
    cache = LayerCache(
        keys=keys.reshape(rows * kv_heads, 1, -1, size),
        values=values.reshape(rows * kv_heads, 1, -1, size),
        position=there.reshape(rows * kv_heads, -1),
    )
    position, block = jax.tree.map(each, rows_of)
    new = (by_row(query), by_row(key[:, :, :, None]), by_row(value[:, :, :, None]), position)
    out = attend(*new, cache, block, scale=scale, softcap=softcap)
    return out.reshape(rows, kv_heads, query.shape[1], -1, size).swapaxes(1, 2)


def gather_pages(
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    pages: ChosenPages,
    position: Int[Array, "B K S"] | None = None,
) -> Gathered:
    """Returns the slots of chosen pages, page by page.

    Args:
      keys, values: of the cache.
      pages: a set for each KV head, or one for all.
      position: of each KV head's slots. None where all that are filled are read, by entries behind them: then their
        positions are told as 0.
    """
    slot = jnp.arange(pages.table.shape[2] * pages.size, dtype=jnp.int32)[None, None]
    if position is None:
        there = jnp.where(slot < pages.filled[:, :, None], 0, jnp.int32(EMPTY))
    else:
        there = jnp.where(slot < pages.counts[:, :, None] * pages.size, take_pages(position, pages), jnp.int32(EMPTY))
    return take_pages(keys, pages), take_pages(values, pages), jnp.broadcast_to(there, (*keys.shape[:2], slot.size))


def hide_other_pages(position: Int[Array, "B S"], pages: ChosenPages, kv_heads: int) -> Int[Array, "B K S"]:
    """Returns the positions of each KV head's slots, `EMPTY` at those of pages that are not chosen."""
    number = jnp.arange(position.shape[1] // pages.size, dtype=jnp.int32)
    place = jnp.arange(pages.table.shape[2], dtype=jnp.int32)
    read = (place[None, None] < pages.counts[:, :, None])[..., None]
    chosen = ((pages.table[..., None] == number[None, None, None]) & read).any(2)
    there = jnp.where(jnp.repeat(chosen, pages.size, axis=2), position[:, None], jnp.int32(EMPTY))
    return jnp.broadcast_to(there, (there.shape[0], kv_heads, there.shape[2]))
