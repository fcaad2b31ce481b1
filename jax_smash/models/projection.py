"""The product of entries with a weight: where a decode step's time goes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from qwix import QArray

from jax_smash import cpu
from jax_smash.quantise import multiply
from jax_smash.sharding import is_divided


def project(
    x: Float[Array, "B T I"], weight: Float[Array, "I *out"] | Float[QArray, "I *out"]
) -> Float[Array, "B T *out"]:
    """Returns x · weight, contracted over I. An int8 weight is multiplied as `quantise.product` says."""
    if isinstance(weight, QArray):
        return multiply(x, weight)
    if is_divided():  # Not as one matrix: axes that are merged cannot stay divided over devices.
        return jnp.einsum("BTI,I...->BT...", x, weight)

    def whole(x: Array, matrix: Array) -> Array:
        return jnp.einsum("BTI,IO->BTO", x, matrix)

    matrix = weight.reshape(weight.shape[0], -1)
    if cpu.has_few_rows(x, matrix):
        product = jax.lax.platform_dependent(x, matrix, cpu=cpu.product_of_few, default=whole)
    else:
        product = whole(x, matrix)
    return product.reshape(*x.shape[:2], *weight.shape[1:])


def project_pair(
    x: Float[Array, "B T I"], weights: Float[Array, "2 I O"] | Float[QArray, "2 I O"]
) -> Float[Array, "2 B T O"]:
    """Returns the products of entries with two matrices of one shape, in one pass over both.

    The matrices lie one behind the other. A TPU copies them at every step where they alternate row by row.
    """
    if isinstance(weights, QArray):
        return jnp.moveaxis(multiply(x, weights, axis=1), 2, 0)

    def whole(x: Array, matrices: Array) -> Array:
        return jnp.einsum("BTI,PIO->PBTO", x, matrices)

    if is_divided():
        return whole(x, weights)
    return jax.lax.platform_dependent(x, weights, cpu=cpu.products_of_pair, default=whole)


def row_products(hidden: Float[Array, "*batch D"], table: Float[Array, "V D"]) -> Float[Array, "*batch V"]:
    """Returns each vector's product with every row of a table, float32."""

    def whole(hidden: Array, table: Array) -> Array:
        return jnp.einsum("...D,VD->...V", hidden, table, preferred_element_type=jnp.float32)

    if is_divided() or not cpu.reads_in_parts(hidden, table):
        return whole(hidden, table)
    return jax.lax.platform_dependent(hidden, table, cpu=cpu.rows_in_parts, default=whole)
