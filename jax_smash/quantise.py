"""int8 weights: a scale for each output channel, and products of 8-bit integers."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import qwix
from flax import nnx
from jaxtyping import Array, Float, Int, Int8, Shaped
from qwix import QArray

from jax_smash.sharding import is_divided

WEIGHTS = ("plain", "int8")
"""How weights may be held: as the model's floats, or as int8 with float32 scales."""

FEW_ROWS = 16
"""Rows up to which a CPU multiplies integers; more are faster as floats, whose one conversion they share."""

UNIT_ROWS = 8
"""Rows that other devices always get. For a single one XLA leaves a TPU's matrix unit alone and multiplies many times
slower, and to fetch a single row of a table it copies the table."""

STRIPES = 16
"""Terms of a sum that a CPU adds up before it writes anything; even, for they go in pairs."""

Path = tuple[Any, ...]


def check_weights(name: str) -> None:
    """Refuses what is no way to hold weights.

    Raises:
      ValueError: the name is unknown.
    """
    if name not in WEIGHTS:
        raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}; got {name!r}")


@functools.partial(jax.jit, static_argnums=1)
def quantise(weight: Float[Array, "..."], contracted: tuple[int, ...]) -> QArray:
    """Returns a weight as int8, symmetrically, each output channel with its own float32 scale.

    A weight differs from what it stands for by at most half its channel's scale. The scale has the weight's rank and
    size 1 along contracted axes, so it is divided over devices by the same logical axes.

    Args:
      weight: of any float dtype.
      contracted: axes that a product sums over; all others are output channels.
    """
    channels = [axis for axis in range(weight.ndim) if axis not in contracted]
    return qwix.quantize(weight.astype(jnp.float32), jnp.int8, channelwise_axes=channels)


def quantise_params(params: nnx.State) -> nnx.State:
    """Returns the parameters of any module with every matrix as int8; norms and biases stay as they are.

    Matrices are the variables that declare their `contracted` axes.
    """
    flat = []
    for path, variable in nnx.to_flat_state(params):
        axes, value = variable.get_metadata().get("contracted"), variable.get_value()
        if axes is not None and not isinstance(value, QArray):
            variable = variable.replace(quantise(value, axes))
        flat.append((path, variable))
    return nnx.from_flat_state(flat)


def quantising_place(
    params: nnx.State, place: Callable[[Path, Any], jax.Array] | None = None
) -> Callable[[Path, Any], jax.Array | QArray]:
    """Returns a function that puts a parameter on its device and quantises it there, where it is a matrix.

    Args:
      params: the parameters, abstract or not, that tell which are matrices.
      place: puts a parameter where it belongs; None puts all on the default device.
    """
    contracted = {path: v.get_metadata().get("contracted") for path, v in nnx.to_flat_state(params)}

    def placed(where: Path, array: Any) -> jax.Array | QArray:
        whole = jax.device_put(array) if place is None else place(where, array)
        axes = contracted[where]
        # Waited for: else the next matrix would be read while this one's floats are still in memory.
        return whole if axes is None else jax.block_until_ready(quantise(whole, axes))

    return placed


def dequantise_params(params: nnx.State) -> nnx.State:
    """Returns parameters with every weight in the dtype that norms are in: what the integers stand for."""
    dtype = activation_dtype(params)

    def plain(value: Any) -> Any:
        return qwix.dequantize(value).astype(dtype) if isinstance(value, QArray) else value

    return jax.tree.map(plain, params, is_leaf=_is_quantised)


def activation_dtype(params: Any) -> Any:
    """Returns the dtype that a model computes in, and its cache holds: that of its first weight that is not int8.

    A model without weights, such as a function that has closed over them, gets float32.
    """
    leaves = jax.tree.leaves(params, is_leaf=_is_quantised)
    return next((x.dtype for x in leaves if not _is_quantised(x)), jnp.dtype(jnp.float32))


def check_plain(params: Mapping[Any, Any]) -> None:
    """Refuses int8 weights where weights are to be saved.

    Raises:
      ValueError: some weight is int8.
    """
    if any(map(_is_quantised, jax.tree.leaves(params, is_leaf=_is_quantised))):
        raise ValueError(
            "weights to save must be plain; got int8: save the model they were made from, "
            "or what they stand for (jax_smash.quantise.dequantise_params)"
        )


def gather(
    table: Float[Array, "V D"] | Float[QArray, "V D"], tokens: Int[Array, "B T"], dtype: Any
) -> Float[Array, "B T D"]:
    """Returns rows of a table, int8 or not, in `dtype`."""
    if not isinstance(table, QArray):
        return table[tokens].astype(dtype)
    rows = _padded(tokens.reshape(-1))
    vectors = jax.lax.optimization_barrier(table.qvalue[rows].astype(jnp.float32) * table.scale[rows])
    return vectors[: tokens.size].astype(dtype).reshape(*tokens.shape, -1)


def multiply(x: Float[Array, "B T I"], weight: Float[QArray, "I *out"]) -> Float[Array, "B T *out"]:
    """Returns x · weight, contracted over I, in x's dtype. See `product`."""
    flat = product(x.reshape(-1, x.shape[-1]), weight, axis=0)
    return flat.astype(x.dtype).reshape(*x.shape[:2], *weight.shape[1:])


def scores(hidden: Float[Array, "*batch D"], table: Float[QArray, "V D"]) -> Float[Array, "*batch V"]:
    """Returns each vector's product with every row of a table, float32. See `product`."""
    flat = product(hidden.reshape(-1, hidden.shape[-1]), table, axis=1)
    return flat.reshape(*hidden.shape[:-1], table.shape[0])


def product(x: Float[Array, "R I"], weight: QArray, *, axis: int) -> Float[Array, "R *out"]:
    """Returns x · weight as float32, x rounded to int8 too, each row with its own scale.

    Both sides are integers, so a row's result hardly depends on the rows beside it, nor on the platform: sums are exact
    on TPUs and GPUs, which multiply int8 with int8 into int32, and up to 2²⁴ on a CPU. Nowhere is a whole matrix of
    floats kept: not in memory and not from one decode step to the next.

    Args:
      x: vectors.
      weight: the matrix, its scale of size 1 along `axis`.
      axis: the weight's axis that is contracted with I: the first or the last.
    """
    rows = _rounded(x)
    few = x.shape[0] <= FEW_ROWS and x.shape[1] % STRIPES == 0 and not is_divided()
    totals = jax.lax.platform_dependent(
        rows.qvalue,
        weight.qvalue,
        cpu=functools.partial(_few_rows if few else _as_floats, axis=axis),
        default=functools.partial(_as_integers, axis=axis),
    )
    out = totals.shape[1:]
    return totals * rows.scale.reshape(-1, *[1] * len(out)) * weight.scale.reshape(1, *out)


def _rounded(x: Float[Array, "R I"]) -> QArray:
    """Returns vectors as int8 from −127 to 127, a scale a row."""
    rows = qwix.quantize(x.astype(jnp.float32), jnp.int8, channelwise_axes=(0,))
    # Without −128, two products with a weight fit 16 bits together. It is as far from what it stands for as −127.
    return dataclasses.replace(rows, qvalue=jnp.maximum(rows.qvalue, jnp.int8(-127)))


def _as_integers(x: Int8[Array, "R I"], w: Int8[Array, "..."], *, axis: int) -> Float[Array, "R *out"]:
    dimensions = (((1,), (axis,)), ((), ()))
    totals = jax.lax.dot_general(_padded(x), w, dimensions, preferred_element_type=jnp.int32)
    return totals[: x.shape[0]].astype(jnp.float32)


def _as_floats(x: Int8[Array, "R I"], w: Int8[Array, "..."], *, axis: int) -> Float[Array, "R *out"]:
    """For a CPU, whose products of int8 matrices are many times slower than those of floats."""
    x, w = jax.lax.optimization_barrier((x, w))  # Else XLA converts all weights before the decode loop, and keeps them.
    dimensions = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(x.astype(jnp.float32), w.astype(jnp.float32), dimensions)


def _few_rows(x: Int8[Array, "R I"], w: Int8[Array, "..."], *, axis: int) -> Float[Array, "R *out"]:
    """For a CPU: one pass over the integers, in vector instructions, that writes a sum for every `STRIPES` of them.

    The contracted axis is cut into stripes that lie side by side in one elementwise sum. Products go in pairs, in 16
    bits. Written as a reduction, XLA would store every product, or go through memory across its rows; and it would
    again merge a reduction over the few remaining sums with what makes them, so a product with ones adds those up.
    """
    x, w = jax.lax.optimization_barrier((x, w))  # As above.
    rows, inner = x.shape
    size = inner // STRIPES
    ones = jnp.ones((size,), jnp.float32)
    wide = x.astype(jnp.int16).reshape(rows, STRIPES, size)
    if axis == 0:
        stripes = w.reshape(STRIPES, 1, size, -1)
        sums = _sum_in_pairs([wide[:, i, :, None] for i in range(STRIPES)], [stripes[i] for i in range(STRIPES)])
        return jnp.einsum("C,RCO->RO", ones, sums).reshape(rows, *w.shape[1:])
    stripes = w.reshape(1, -1, STRIPES, size)
    sums = _sum_in_pairs([wide[:, None, i] for i in range(STRIPES)], [stripes[:, :, i] for i in range(STRIPES)])
    return jnp.einsum("ROC,C->RO", sums, ones).reshape(rows, *w.shape[:-1])


def _sum_in_pairs(xs: list[Array], ws: list[Array]) -> Array:
    products = [x * w.astype(jnp.int16) for x, w in zip(xs, ws, strict=True)]
    pairs = [(a + b).astype(jnp.int32) for a, b in zip(products[::2], products[1::2], strict=True)]
    return functools.reduce(jnp.add, pairs).astype(jnp.float32)


def _padded(x: Shaped[Array, "R *rest"]) -> Shaped[Array, "padded *rest"]:
    """Returns at least `UNIT_ROWS` rows, zeros behind those given; XLA is kept from seeing that they are zeros."""
    missing = UNIT_ROWS - x.shape[0]
    return x if missing <= 0 else jax.lax.optimization_barrier(jnp.pad(x, ((0, missing), *[(0, 0)] * (x.ndim - 1))))


def _is_quantised(x: Any) -> bool:
    return isinstance(x, QArray)
