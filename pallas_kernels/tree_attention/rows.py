"""How the kernels lay out a block's entries, and what each of them may see.

Row t · G + g of a KV head is entry t's query of its g-th head, where a kernel has queries as rows.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt32

from pallas_kernels.tree_attention.inputs import WORD, Inputs, Options

NOWHERE = -1
"""Position of a row that sees nothing: no slot is that early."""


def round_up(n: int, multiple: int) -> int:
    """Returns the least multiple of `multiple` that is at least `n`."""
    return -(-n // multiple) * multiple


def query_rows(query: Float[Array, "B T N H"], kv_heads: int, rows: int) -> Float[Array, "B K R H"]:
    """Returns the queries of each KV head, padded with zeros to `rows` rows."""
    batch, width, heads, head_width = query.shape
    grouped = query.reshape(batch, width, kv_heads, heads // kv_heads, head_width).transpose(0, 2, 1, 3, 4)
    return _pad(grouped.reshape(batch, kv_heads, -1, head_width), 2, rows)


def entries(out: Float[Array, "B K R H"], width: int, heads: int) -> Float[Array, "B T N H"]:
    """Undoes `query_rows`."""
    batch, kv_heads, _, head_width = out.shape
    group = heads // kv_heads
    split = out[:, :, : width * group].reshape(batch, kv_heads, width, group, head_width)
    return split.transpose(0, 2, 1, 3, 4).reshape(batch, width, heads, head_width)


def row_positions(inputs: Inputs, rows: int) -> Int[Array, "B R"]:
    """Returns the position of each row's entry; `NOWHERE` at padding."""
    position = jnp.where(inputs.valid, inputs.position, NOWHERE)
    return _pad(jnp.repeat(position, _group(inputs), axis=1), 1, rows, NOWHERE)


def entry_positions(inputs: Inputs, rows: int) -> Int[Array, "B R"]:
    """Returns the position of each entry; `NOWHERE` at padding."""
    return _pad(jnp.where(inputs.valid, inputs.position, NOWHERE), 1, rows, NOWHERE)


def entry_words(inputs: Inputs, rows: int, words: int) -> UInt32[Array, "B R Words"]:
    """Returns which entries each entry sees, as packed bits: the ancestors that are valid, none at padding."""
    visible = inputs.ancestors & _pack(inputs.valid, inputs.ancestors.shape[2])[:, None]
    visible = jnp.where(inputs.valid[:, :, None], visible, jnp.uint32(0))
    # The caller's words may be more than the entries need.
    return _pad(_pad(visible[:, :, :words], 2, words), 1, rows)


def row_words(inputs: Inputs, rows: int, words: int) -> UInt32[Array, "B R Words"]:
    """Returns the words of `entry_words` for each row."""
    visible = entry_words(inputs, inputs.position.shape[1], words)
    return _pad(jnp.repeat(visible, _group(inputs), axis=1), 1, rows)


def heads_side_by_side(inputs: Inputs, entries: int) -> Float[Array, "B E Lanes"]:
    """Returns each entry's heads in one row, padded to so many entries: for each KV head its queries, key and value.

    Where they were cut from such a row, the compiler takes that.
    """
    batch, width, _, head_width = inputs.query.shape
    query = inputs.query.reshape(batch, width, inputs.key.shape[2], -1, head_width)
    heads = jnp.concatenate([query, inputs.key[:, :, :, None], inputs.value[:, :, :, None]], axis=3)
    return _pad(heads.reshape(batch, width, -1), 1, entries)


def head_major(own: Float[Array, "B T K H"], columns: int) -> Float[Array, "B K U H"]:
    """Returns the block's keys or values laid out as the cache's, padded to `columns`."""
    return _pad(own.transpose(0, 2, 1, 3), 2, columns)


def own_positions(position: Int[Array, "B T"], columns: int) -> Int[Array, "B U"]:
    """Returns the position of each of the block's columns; padding is hidden by its bit."""
    return _pad(position, 1, columns)


def needed_blocks(inputs: Inputs, options: Options, block: int) -> tuple[Int[Array, "B Blocks"], Int[Array, "B"]]:
    """Returns which blocks of the cache each batch row must read, in order, and how many.

    A block that no valid entry of its row sees a slot of is left out, wherever it lies: behind the row's last slot,
    or outside its window in a cache that starts over. What follows the last needed block repeats it.
    """
    valid, slot = inputs.valid, inputs.slot_position
    latest = jnp.where(valid, inputs.position, NOWHERE).max(1, keepdims=True)
    seen = slot <= latest
    if options.window:
        earliest = jnp.where(valid, inputs.position, latest).min(1, keepdims=True)
        seen &= slot > earliest - options.window
    blocks = round_up(slot.shape[1], block) // block
    needed = _pad(seen, 1, blocks * block).reshape(slot.shape[0], blocks, block).any(2)
    # The i-th needed block is the first with more than i needed blocks up to and with it.
    reached = jax.lax.cumsum(needed.astype(jnp.int32), axis=1)
    count = reached[:, -1]
    wanted = jnp.minimum(jnp.arange(blocks, dtype=jnp.int32)[None], jnp.maximum(count[:, None] - 1, 0))
    order = (reached[:, None, :] <= wanted[:, :, None]).sum(2, dtype=jnp.int32)
    return jnp.minimum(order, blocks - 1), count


def _group(inputs: Inputs) -> int:
    return inputs.query.shape[2] // inputs.key.shape[2]


def _pack(bits: Bool[Array, "B T"], words: int) -> UInt32[Array, "B W"]:
    padded = _pad(bits, 1, words * WORD).reshape(bits.shape[0], words, WORD).astype(jnp.uint32)
    return (padded << jnp.arange(WORD, dtype=jnp.uint32)[None, None]).sum(2, dtype=jnp.uint32)


def _pad(array: Shaped[Array, "..."], axis: int, size: int, fill: int = 0) -> Shaped[Array, "..."]:
    short = [(0, 0)] * array.ndim
    short[axis] = (0, size - array.shape[axis])
    return jnp.pad(array, short, constant_values=fill) if size > array.shape[axis] else array
