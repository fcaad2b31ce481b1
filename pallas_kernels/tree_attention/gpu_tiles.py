"""A warpgroup's tile in GPU kernels of attention: its sizes, products and masks."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels.tree_attention.inputs import WORD

TILE = 64
"""Rows of a warpgroup's matrix product: the hardware's number."""

BLOCK = 64
"""Slots, or entries of the block itself, at once."""


def product(a: Any, b: Any, columns: int) -> Float[Array, "X Y"]:
    """Returns a tile's matrix product, float32."""

    def multiplied(result: Any) -> Array:
        plgpu.wgmma(result, a, b)
        return result[...]

    return pl.run_scoped(multiplied, plgpu.ACC((TILE, columns), jnp.float32))


def unpacked(words: list[Array]) -> Array:
    """Returns each row's bits as booleans: `words` are a block's, each `[TILE]`."""
    column = jax.lax.broadcasted_iota(jnp.int32, (TILE, BLOCK), 1)
    word = down_columns(words[0], BLOCK)
    for i in range(1, len(words)):
        word = jnp.where(column >= i * WORD, down_columns(words[i], BLOCK), word)
    return ((word >> (column & (WORD - 1))) & 1) != 0


def along_rows(column: Array) -> Array:
    """Returns what each of a block's columns has, on every row of a tile."""
    return jax.lax.broadcast_in_dim(column, (TILE, BLOCK), (1,))


def down_columns(row: Array, columns: int) -> Array:
    """Returns what each of a tile's rows has, on so many columns."""
    return jax.lax.broadcast_in_dim(row, (TILE, columns), (0,))
