"""The product of entries with a weight: where a decode step's time goes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LARGE = 2 << 20
"""Bytes of a weight from which a CPU reads it in four parts, not two."""


def project(x: Float[Array, "B T I"], weight: Float[Array, "I *out"]) -> Float[Array, "B T *out"]:
    """Returns x · weight, contracted over I.

    On a CPU, XLA gives the product of one row and a weight of up to 2 MiB to one core, and a larger one to as many as
    it has such pieces. So a single row there is multiplied in equal parts of I, which run side by side, and the parts'
    products are added. Other shapes and platforms make one product.
    """
    out = weight.shape[1:]
    parts = 4 if weight.nbytes >= LARGE else 2

    def whole(x: Array, flat: Array) -> Array:
        return jnp.einsum("BTI,IO->BTO", x, flat)

    def in_parts(x: Array, flat: Array) -> Array:
        pieces = flat.reshape(parts, -1, flat.shape[1])
        return jnp.einsum("PRI,PIO->PRO", x.reshape(parts, 1, -1), pieces).sum(0)[None]

    flat = weight.reshape(weight.shape[0], -1)
    if x.shape[0] * x.shape[1] > 1 or x.shape[2] % parts or x.dtype != jnp.float32:
        product = whole(x, flat)
    else:
        product = jax.lax.platform_dependent(x, flat, cpu=in_parts, default=whole)
    return product.reshape(*x.shape[:2], *out)
