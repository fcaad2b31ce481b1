"""The product of entries with a weight: where a decode step's time goes."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from qwix import QArray

from jax_smash.quantise import multiply
from jax_smash.sharding import is_divided

LARGE = 2 << 20
"""Bytes of a weight from which a CPU reads it in four parts, not two."""

FEW_ROWS = 4
"""Rows up to which a CPU multiplies them one by one."""

HEAD_PARTS = 4
"""Parts in which a CPU reads the table of all tokens' vectors."""


def project(
    x: Float[Array, "B T I"], weight: Float[Array, "I *out"] | Float[QArray, "I *out"]
) -> Float[Array, "B T *out"]:
    """Returns x · weight, contracted over I. An int8 weight is multiplied as `quantise.product` says.

    On a CPU a few rows are multiplied one by one, see `_one_by_one`. Other shapes and platforms make one product.
    """
    if isinstance(weight, QArray):
        return multiply(x, weight)
    if is_divided():  # Not as one matrix: axes that are merged cannot stay divided over devices.
        return jnp.einsum("BTI,I...->BT...", x, weight)

    def whole(x: Array, matrices: Array) -> Array:
        return jnp.einsum("BTI,IO->BTO", x, matrices[0])

    matrices = weight.reshape(1, weight.shape[0], -1)
    parts = 4 if weight.nbytes >= LARGE else 2
    if _is_short(x, parts):
        cpu = functools.partial(_one_by_one, parts=parts)
        product = jax.lax.platform_dependent(x, matrices, cpu=cpu, default=whole)
    else:
        product = whole(x, matrices)
    return product.reshape(*x.shape[:2], *weight.shape[1:])


def project_pair(
    x: Float[Array, "B T I"], weights: Float[Array, "2 I O"] | Float[QArray, "2 I O"]
) -> Float[Array, "B T 2 O"]:
    """Returns the products of entries with two matrices of one shape, in one pass over both.

    The matrices lie one behind the other. A TPU copies them at every step where they alternate row by row.
    """
    if isinstance(weights, QArray):
        return multiply(x, weights, axis=1)

    def whole(x: Array, matrices: Array) -> Array:
        return jnp.einsum("BTI,PIO->BTPO", x, matrices)

    def both(x: Array, matrices: Array) -> Array:
        if _is_short(x, parts):
            return _one_by_one(x, matrices, parts=parts).reshape(*x.shape[:2], *weights.shape[::2])
        # One product a matrix, side by side: of a single one XLA would turn the matrices, of two apart copy them.
        rows = jnp.broadcast_to(x.reshape(1, -1, x.shape[2]), (2, x.shape[0] * x.shape[1], x.shape[2]))
        return jnp.einsum("PRI,PIO->RPO", rows, matrices).reshape(*x.shape[:2], *weights.shape[::2])

    parts = 2 if weights.nbytes >= LARGE else 1
    if is_divided():
        return whole(x, weights)
    return jax.lax.platform_dependent(x, weights, cpu=both, default=whole)


def _is_short(x: Float[Array, "B T I"], parts: int) -> bool:
    return x.shape[0] * x.shape[1] <= FEW_ROWS and x.shape[2] % parts == 0 and x.dtype == jnp.float32


def _one_by_one(x: Float[Array, "B T I"], matrices: Float[Array, "P I O"], *, parts: int) -> Float[Array, "B T PO"]:
    """Multiplies a few rows with P matrices: each row alone, in equal parts of I that run side by side.

    For a CPU, where XLA gives the product of one row and a matrix of up to 2 MiB to one core, and a larger one to as
    many as it has such pieces; two rows at once take it three times as long as one.
    """
    count, inner, out = matrices.shape
    pieces = matrices.reshape(count * parts, inner // parts, out)

    def one(row: Array) -> Array:
        halves = jnp.tile(row.reshape(parts, 1, -1), (count, 1, 1))
        products = jnp.einsum("PRI,PIO->PRO", halves, pieces).reshape(count, parts, out)
        # By hand: XLA makes a library call of a sum over an axis, and merges plain additions with what follows.
        while products.shape[1] > 1:
            half = products.shape[1] // 2
            products = products[:, :half] + products[:, half:]
        return products.reshape(1, -1)

    rows = x.reshape(-1, inner)
    return jnp.concatenate([one(rows[i]) for i in range(len(rows))]).reshape(*x.shape[:2], -1)


def row_products(hidden: Float[Array, "*batch D"], table: Float[Array, "V D"]) -> Float[Array, "*batch V"]:
    """Returns each vector's product with every row of a table, float32.

    On a CPU, a single vector's product is made in equal parts of V: cores then read the table side by side, from one
    end of each row to the other.
    """

    def whole(hidden: Array, table: Array) -> Array:
        return jnp.einsum("...D,VD->...V", hidden, table, preferred_element_type=jnp.float32)

    def in_parts(hidden: Array, table: Array) -> Array:
        pieces = table.reshape(HEAD_PARTS, -1, table.shape[1])
        copies = jnp.broadcast_to(hidden.reshape(1, -1), (HEAD_PARTS, table.shape[1]))
        return jnp.einsum("PVD,PD->PV", pieces, copies).reshape(*hidden.shape[:-1], -1)

    one = hidden.size == hidden.shape[-1] and hidden.dtype == jnp.float32
    if not one or table.shape[0] % HEAD_PARTS or is_divided():
        return whole(hidden, table)
    return jax.lax.platform_dependent(hidden, table, cpu=in_parts, default=whole)
