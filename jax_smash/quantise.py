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

from jax_smash import cpu

WEIGHTS = ("plain", "int8")
"""How weights may be held: as the model's floats, or as int8 with float32 scales."""

UNIT_ROWS = 8
"""Rows that other devices always get. For a single one XLA leaves a TPU's matrix unit alone and multiplies many times
slower, and to fetch a single row of a table it copies the table."""

LOW_UNITS = 254
"""Units in a row's scale of the second int8 term of a vector: half a unit of the first term is 127 of them."""

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


def has_int8(params: Mapping[Any, Any]) -> bool:
    """Returns whether some weight is int8."""
    return any(map(_is_quantised, jax.tree.leaves(params, is_leaf=_is_quantised)))


def check_plain(params: Mapping[Any, Any]) -> None:
    """Refuses int8 weights where weights are to be saved.

    Raises:
      ValueError: some weight is int8.
    """
    if has_int8(params):
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


def multiply(x: Float[Array, "B T I"], weight: QArray, *, axis: int = 0) -> Float[Array, "B T *out"]:
    """Returns x · weight, contracted over I, in x's dtype. See `product`."""
    flat = product(x.reshape(-1, x.shape[-1]), weight, axis=axis)
    return flat.astype(x.dtype).reshape(*x.shape[:2], *flat.shape[1:])


def scores(hidden: Float[Array, "*batch D"], table: Float[QArray, "V D"]) -> Float[Array, "*batch V"]:
    """Returns each vector's product with every row of a table, float32. See `product`."""
    flat = product(hidden.reshape(-1, hidden.shape[-1]), table, axis=1)
    return flat.reshape(*hidden.shape[:-1], table.shape[0])


def product(x: Float[Array, "R I"], weight: QArray, *, axis: int) -> Float[Array, "R *out"]:
    """Returns x · weight as float32, x rounded to two int8 terms with one scale a row.

    x ≈ scale · (high + low / 254), so a value is off by at most about 1/65,000 of its row's largest. One term alone,
    which is off by 1/255, costs the models whose activations have outliers much more than int8 weights do.

    Both sides are integers on TPUs and GPUs, which multiply int8 with int8 into int32, both terms in one product.
    Nowhere is a whole matrix of floats kept: not in memory and not from one decode step to the next.

    Args:
      x: vectors.
      weight: the matrix, its scale of size 1 along `axis`.
      axis: the weight's axis that is contracted with I: the first or the last, or the middle one of three.
    """
    high, low = _rounded(x)
    totals = jax.lax.platform_dependent(
        high.qvalue,
        low,
        weight.qvalue,
        cpu=functools.partial(cpu.int8_product, axis=axis, unit=LOW_UNITS),
        default=functools.partial(_as_integers, axis=axis),
    )
    out = totals.shape[1:]
    return totals * high.scale.reshape(-1, *[1] * len(out)) * weight.scale.reshape(1, *out)


def _rounded(x: Float[Array, "R I"]) -> tuple[QArray, Int8[Array, "R I"]]:
    """Returns vectors as int8 from −127 to 127, a scale a row, and what is left of them in units of 1/254."""
    x = x.astype(jnp.float32)
    high = qwix.quantize(x, jnp.int8, channelwise_axes=(0,))
    # Without −128, two products with a weight fit 16 bits together. It is as far from what it stands for as −127.
    high = dataclasses.replace(high, qvalue=jnp.maximum(high.qvalue, jnp.int8(-127)))
    rest = x / high.scale - high.qvalue.astype(jnp.float32)
    return high, jnp.clip(jnp.round(rest * LOW_UNITS), -127, 127).astype(jnp.int8)


def _as_integers(
    high: Int8[Array, "R I"], low: Int8[Array, "R I"], w: Int8[Array, "..."], *, axis: int
) -> Float[Array, "R *out"]:
    dimensions = (((1,), (axis,)), ((), ()))
    both = _padded(jnp.concatenate([high, low]))
    totals = jax.lax.dot_general(both, w, dimensions, preferred_element_type=jnp.int32).astype(jnp.float32)
    rows = high.shape[0]
    return totals[:rows] + totals[rows : 2 * rows] / LOW_UNITS


def _padded(x: Shaped[Array, "R *rest"]) -> Shaped[Array, "padded *rest"]:
    """Returns at least `UNIT_ROWS` rows, zeros behind those given; XLA is kept from seeing that they are zeros."""
    missing = UNIT_ROWS - x.shape[0]
    return x if missing <= 0 else jax.lax.optimization_barrier(jnp.pad(x, ((0, missing), *[(0, 0)] * (x.ndim - 1))))


def _is_quantised(x: Any) -> bool:
    return isinstance(x, QArray)
