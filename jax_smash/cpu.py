"""What only a CPU needs: the same mathematics in the forms that XLA compiles well there.

Each function stands for a formula beside its caller, which every other platform runs. Most are about few rows that meet
a large matrix: XLA for a CPU gives the product of one row to one core, and that of a few rows to a slow library call.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int8, Shaped

from jax_smash.sharding import is_divided
from jax_smash.threshold import mark_highest, marks_before

FEW_ROWS, MORE_ROWS = 3, 4
"""Rows up to which each is multiplied alone with any weight, and with a small one."""

SMALL = 1 << 20
"""Bytes of a small weight at most."""

LARGE = 2 << 20
"""Bytes of a weight from which it is read in four parts, not two."""

HEAD_PARTS, HEAD_ROWS = 4, 64
"""Parts in which the table of all tokens' vectors is read, and vectors up to which that is faster."""

FEW_QUERIES, MORE_QUERIES = 4, 16
"""Rows a KV head up to which each meets the keys alone, and up to which keys are the first factor of a product."""

STRIPES = 16
"""Terms of a sum of integers that are added up before anything is written; even, for they go in pairs."""

TILE = 1 << 20
"""Numbers of an int8 matrix that become floats at once: 4 MB of them stay in cache."""

CHOICE_SECONDS, CACHE_BYTES_PER_SECOND = 30e-6, 12e9
"""Of a layer that chooses slots: seconds of a row however long its text is, and bytes of a whole cache that attention
reads.

These and the next were measured on two cores with a float32 layer of SmolLM2's shape and one row, of 2,048 and 8,192
slots, in pages of 16 and 64 by their bounds. With 8 rows each takes about as long.
"""

GATHERED, SCORED, RANKED = 2.25, 1.0, 800.0
"""What a byte of chosen slots and one that they are chosen by cost in bytes of a whole cache, and each candidate."""

MANY = 256
"""Numbers from which the highest are found faster by a threshold than by sorting."""

FEW_SETS = 8
"""Sets of pages, of all rows and KV heads, up to which they are gathered in halves."""

SHORT_PATH = 16
"""Entries of a path up to which as many of them are written as there are, one after another."""


def has_few_rows(x: Float[Array, "B T I"], matrix: Float[Array, "I O"]) -> bool:
    """Whether `product_of_few` is faster than one product."""
    return _are_few(x, matrix.nbytes) and x.shape[2] % _parts(matrix) == 0


def product_of_few(x: Float[Array, "B T I"], matrix: Float[Array, "I O"]) -> Float[Array, "B T O"]:
    """Returns x · matrix, each row alone."""
    return _one_by_one(x, matrix[None], parts=_parts(matrix))


def products_of_pair(x: Float[Array, "B T I"], matrices: Float[Array, "2 I O"]) -> Float[Array, "2 B T O"]:
    """Returns the products with both matrices."""
    parts, shape = _parts(matrices) // 2, (2, *x.shape[:2], matrices.shape[2])
    if _are_few(x, matrices.nbytes // 2) and x.shape[2] % parts == 0:
        both = _one_by_one(x, matrices, parts=parts).reshape(*x.shape[:2], 2, -1)
        return jnp.moveaxis(both, 2, 0)
    # One product a matrix, side by side: of a single one XLA would turn the matrices, of two apart copy them.
    rows = jnp.broadcast_to(x.reshape(1, -1, x.shape[2]), (2, x.shape[0] * x.shape[1], x.shape[2]))
    return jnp.einsum("PRI,PIO->PRO", rows, matrices).reshape(shape)


def _are_few(x: Float[Array, "B T I"], nbytes: int) -> bool:
    """Whether each row is multiplied alone with a matrix of so many bytes."""
    rows = x.shape[0] * x.shape[1]
    return x.dtype == jnp.float32 and rows <= (MORE_ROWS if nbytes <= SMALL else FEW_ROWS)


def _parts(weight: Shaped[Array, "..."]) -> int:
    return 4 if weight.nbytes >= LARGE else 2


def _one_by_one(x: Float[Array, "B T I"], matrices: Float[Array, "P I O"], *, parts: int) -> Float[Array, "B T PO"]:
    """Multiplies a few rows with P matrices: each row alone, in equal parts of I that run side by side.

    XLA gives the product of one row and a matrix of up to 2 MiB to one core, and a larger one to as many as it has such
    pieces. Two rows at once take it up to twice as long as one.
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


def reads_in_parts(hidden: Float[Array, "*batch D"], table: Float[Array, "V D"]) -> bool:
    """Whether `rows_in_parts` is faster than one product."""
    few = hidden.size <= HEAD_ROWS * hidden.shape[-1] and hidden.dtype == jnp.float32
    return few and table.shape[0] % HEAD_PARTS == 0


def rows_in_parts(hidden: Float[Array, "*batch D"], table: Float[Array, "V D"]) -> Float[Array, "*batch V"]:
    """Returns a few vectors' products with every row of a table.

    In equal parts of V, so that cores read the table side by side, from one end of each row to the other.
    """
    tokens, width = table.shape
    pieces, vectors = table.reshape(HEAD_PARTS, -1, width), hidden.reshape(hidden.size // width, width)
    copies = jnp.broadcast_to(vectors, (HEAD_PARTS, *vectors.shape))
    # Vectors that stand before the table take a quarter longer.
    products = jnp.einsum("PVD,PRD->PVR", pieces, copies).reshape(tokens, len(vectors))
    return products.T.reshape(*hidden.shape[:-1], tokens)


def has_few_queries(query: Float[Array, "B K R H"]) -> bool:
    """Whether `scores_of_few` is faster than one product."""
    return query.shape[2] <= MORE_QUERIES and query.dtype == jnp.float32


def scores_of_few(query: Float[Array, "B K R H"], keys: Float[Array, "B K S H"]) -> Float[Array, "B K R S"]:
    """Returns the products of a few queries with each KV head's keys.

    Three of them in one product would take as long as three products, or up to a third longer.
    """
    if query.shape[2] > FEW_QUERIES:
        return jnp.einsum("BKSH,BKRH->BKSR", keys, query, preferred_element_type=jnp.float32).swapaxes(2, 3)
    products = [
        jnp.einsum("BKH,BKSH->BKS", query[:, :, r], keys, preferred_element_type=jnp.float32)
        for r in range(query.shape[2])
    ]
    return jnp.stack(products, axis=2)


def int8_product(
    high: Int8[Array, "R I"], low: Int8[Array, "R I"], w: Int8[Array, "..."], *, axis: int, unit: int
) -> Float[Array, "R *out"]:
    """Returns (high + low / unit) · w; in place of a product of integers, which XLA makes many times slower on a CPU.

    The matrices of a stack follow one another: as one product, XLA would turn them. A single row is multiplied as
    integers; more are faster as floats, whose one conversion they share.
    """
    if w.ndim == 3 and axis == 1:
        return jnp.stack([int8_product(high, low, matrix, axis=0, unit=unit) for matrix in w], axis=1)
    alone = len(high) == 1 and high.shape[1] % STRIPES == 0 and not is_divided()
    return (_one_row if alone else _as_floats)(high, low, w, axis=axis, unit=unit)


def _as_floats(
    high: Int8[Array, "R I"], low: Int8[Array, "R I"], w: Int8[Array, "..."], *, axis: int, unit: int
) -> Float[Array, "R *out"]:
    """Converts a matrix to floats a tile at a time, and multiplies a tile while it is still in cache."""
    # Else XLA converts all weights before the decode loop, and keeps them.
    high, low, w = jax.lax.optimization_barrier((high, low, w))
    x = high.astype(jnp.float32) + low.astype(jnp.float32) / unit
    rows, length = x.shape[0], w.shape[0]
    tiles = 1 if is_divided() else _tiles(length, w.size)
    by_tile = w.reshape(tiles, length // tiles, -1)
    if axis == 0:
        parts = x.reshape(rows, tiles, -1).swapaxes(0, 1)

        def add(total: Array, tile: tuple[Array, Array]) -> tuple[Array, None]:
            return total + tile[0] @ tile[1].astype(jnp.float32), None

        total, _ = jax.lax.scan(add, jnp.zeros((rows, by_tile.shape[-1]), jnp.float32), (parts, by_tile))
        return total.reshape(rows, *w.shape[1:])
    columns = jax.lax.map(lambda tile: x @ tile.astype(jnp.float32).T, by_tile)
    return columns.swapaxes(0, 1).reshape(rows, length)


def _tiles(length: int, size: int) -> int:
    """Returns into how many equal tiles of at most about `TILE` numbers an axis is cut."""
    wanted = min(length, -(-size // TILE))
    return next(n for n in range(wanted, length + 1) if length % n == 0)


def _one_row(
    high: Int8[Array, "1 I"], low: Int8[Array, "1 I"], w: Int8[Array, "..."], *, axis: int, unit: int
) -> Float[Array, "1 *out"]:
    """Makes one pass over the integers, in vector instructions, that writes a sum for every `STRIPES` of them.

    The contracted axis is cut into stripes that lie side by side in one elementwise sum. Products go in pairs, in 16
    bits. Written as a reduction, XLA would store every product, or go through memory across its rows; and it would
    again merge a reduction over the few remaining sums with what makes them, so a product with ones adds those up.
    """
    high, low, w = jax.lax.optimization_barrier((high, low, w))  # As above.
    size = high.shape[1] // STRIPES
    ones = jnp.ones((size,), jnp.float32)
    shape = (STRIPES, size, 1) if axis == 0 else (STRIPES, 1, size)
    of_high, of_low = [x.astype(jnp.int16).reshape(shape) for x in (high, low)]
    stripes = w.reshape(STRIPES, size, -1) if axis == 0 else w.reshape(-1, STRIPES, size)
    ws = [jax.lax.index_in_dim(stripes, i, axis, keepdims=False) for i in range(STRIPES)]
    sums = _sum_in_pairs(of_high, ws) + _sum_in_pairs(of_low, ws) / unit
    if axis == 0:
        return jnp.einsum("C,CO->O", ones, sums).reshape(1, *w.shape[1:])
    return jnp.einsum("OC,C->O", sums, ones).reshape(1, *w.shape[:-1])


def _sum_in_pairs(x: Array, w: list[Array]) -> Array:
    products = [x[i] * w[i].astype(jnp.int16) for i in range(STRIPES)]
    pairs = [(a + b).astype(jnp.int32) for a, b in zip(products[::2], products[1::2], strict=True)]
    return functools.reduce(jnp.add, pairs).astype(jnp.float32)


def highest(logits: Float[Array, "*batch V"]) -> Int[Array, "*batch"]:
    """Returns the index of the highest logit.

    XLA looks for the highest value and its index together, one value after the other. Here they are found one after the
    other, each of many values at once.
    """
    found = (logits == logits.max(-1, keepdims=True)) | jnp.isnan(logits)
    index = jnp.arange(logits.shape[-1], dtype=jnp.int32).reshape((1,) * (logits.ndim - 1) + (-1,))
    return jnp.where(found, index, logits.shape[-1]).min(-1)


def highest_places(
    rank: Float[Array, "B Sets S"], count: Int[Array, "B Sets"], most: int
) -> tuple[Int[Array, "B Sets C"], Bool[Array, "B Sets C"]]:
    """Returns the places of the highest numbers in their order, and which of them are meant: the first ones.

    XLA for a CPU sorts for a top-k. Here the numbers are marked, and the places of marks written one behind the other.

    Args:
      rank: −∞ is never taken; of equal numbers the first is.
      count: how many are taken, `most` at most.
      most: C, places that are returned.
    """
    taken = mark_highest(rank, rank > -jnp.inf, count)
    row, group, number = (jnp.arange(size, dtype=jnp.int32) for size in rank.shape)
    # All that is not taken goes to one place behind.
    at = row[:, None, None], group[None, :, None], jnp.where(taken, marks_before(taken), most)
    found = jnp.zeros((*rank.shape[:2], most + 1), jnp.int32).at[at].set(jnp.broadcast_to(number, rank.shape))
    return found[..., :most], number[None, None, :most] < taken.sum(-1, keepdims=True, dtype=jnp.int32)


def are_few_sets(table: Int[Array, "B K N"], by_page: Shaped[Array, "B K P *page"]) -> bool:
    """Whether `pages_in_halves` is faster than taking all pages at once."""
    return table.shape[0] * table.shape[1] <= FEW_SETS and table.shape[2] > 1 and by_page.dtype == jnp.float32


def pages_in_halves(by_page: Shaped[Array, "B K P *page"], table: Int[Array, "B K N"]) -> Shaped[Array, "B K N *page"]:
    """Returns the pages of each table, one half of them behind the other.

    By themselves, on two cores, two halves took 0.5 to 0.7 of the time of one gather.
    """
    rows, heads, count, *page = by_page.shape
    first = count * jnp.arange(rows * heads, dtype=jnp.int32).reshape(rows, heads, 1)
    chosen, pages = (first + table).reshape(-1), by_page.reshape(rows * heads * count, -1)
    halves = jnp.split(chosen, [chosen.size // 2])
    found = jnp.concatenate([pages.at[half].get(mode="promise_in_bounds") for half in halves])
    return found.reshape(rows, heads, -1, *page)


def write_by_entry(
    write: Callable[..., tuple[Array, ...]],
    arrays: tuple[Shaped[Array, "B _ _ _"], ...],
    entries: tuple[Shaped[Array, "B P _ _"], ...],
    slot_length: Int[Array, "B"],
    count: Int[Array, "B"],
) -> tuple[Shaped[Array, "B _ _ _"], ...]:
    """Writes as many entries as the row with most has, one after another, by a function that writes a block of them.

    Of the path that a draft may take, most is not taken, and each write of nothing takes as long as another.
    """
    if not 1 < entries[0].shape[1] <= SHORT_PATH:
        return write(arrays, entries, slot_length, count)

    def write_one(i: Int[Array, ""], arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        one = tuple(jax.lax.dynamic_slice_in_dim(new, i, 1, axis=1) for new in entries)
        return write(arrays, one, slot_length + i, jnp.clip(count - i, 0, 1))

    return jax.lax.fori_loop(jnp.zeros((), jnp.int32), count.max(), write_one, tuple(arrays))


def for_each(change: Callable[[Array, Any], Any], seen: Bool[Array, "n"], values: Any) -> Any:
    """Changes values by each seen entry, one after the other.

    Most entries are a budget's padding: the few others take less time than finding the last of each token.
    """
    order = jnp.argsort(~seen, stable=True)

    def change_one(i: Array, values: Any) -> Any:
        return change(order[i], values)

    return jax.lax.fori_loop(jnp.int32(0), seen.sum(dtype=jnp.int32), change_one, values)
