"""The product of entries with a weight: where a decode step's time goes."""

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

    On a CPU, XLA gives the product of one row and a weight of up to 2 MiB to one core, and a larger one to as many as
    it has such pieces; two rows at once take it three times as long as one. So a few rows there are multiplied one by
    one, each in equal parts of I that run side by side and whose products are added. Other shapes and platforms make
    one product.
    """
    if isinstance(weight, QArray):
        return multiply(x, weight)
    if is_divided():  # Not as one matrix: axes that are merged cannot stay divided over devices.
        return jnp.einsum("BTI,I...->BT...", x, weight)
    out, rows = weight.shape[1:], x.shape[0] * x.shape[1]
    parts = 4 if weight.nbytes >= LARGE else 2

    def whole(x: Array, flat: Array) -> Array:
        return jnp.einsum("BTI,IO->BTO", x, flat)

    def in_parts(x: Array, flat: Array) -> Array:
        pieces = flat.reshape(parts, -1, flat.shape[1])
        products = jnp.einsum("PRI,PIO->PRO", x.reshape(parts, 1, -1), pieces)
        # By hand: XLA makes a library call of a sum over an axis, and merges plain additions with what follows.
        half = products[: parts // 2] + products[parts // 2 :]
        return half if parts == 2 else half[:1] + half[1:]

    def one_by_one(x: Array, flat: Array) -> Array:
        lines = x.reshape(rows, 1, 1, -1)
        return jnp.concatenate([in_parts(lines[i], flat) for i in range(rows)], axis=1).reshape(*x.shape[:2], -1)

    flat = weight.reshape(weight.shape[0], -1)
    if rows > FEW_ROWS or x.shape[2] % parts or x.dtype != jnp.float32:
        product = whole(x, flat)
    else:
        product = jax.lax.platform_dependent(x, flat, cpu=one_by_one, default=whole)
    return product.reshape(*x.shape[:2], *out)


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
