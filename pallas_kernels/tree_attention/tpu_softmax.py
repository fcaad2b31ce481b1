"""What TPU kernels of attention share: how they take entries in, and a softmax that is kept up block by block."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int, Shaped

from pallas_kernels.tree_attention.inputs import WORD, Inputs, Options
from pallas_kernels.tree_attention.reference import MASKED
from pallas_kernels.tree_attention.rows import entry_positions, entry_words, heads_side_by_side, own_positions

LANES = 128
ROWS = 8
COLUMNS = 256
"""Scores of a row that one product makes: as wide as a matrix unit."""

LOG2_E = math.log2(math.e)


class Entries(NamedTuple):
    """The block's entries as a kernel reads them, tile by tile, and how it writes what it makes of them.

    Attributes:
      heads: queries, key and value of a KV head side by side: `[B, E, K · (G + 2) · H]` where they fill whole lanes,
        else `[B, K, E, (G + 2) · H]`.
      position: of each entry, `[B, E, 1]`.
      words: which entries of a tile each entry sees, `[B, tiles, E, words of a tile]`.
      own_position: of each entry, as columns, `[B, tiles, 1, tile]`.
      kv_heads, head_width, group: K, H, G.
    """

    heads: Float[Array, "..."]
    position: Int[Array, "B E 1"]
    words: Int[Array, "B tiles E Words"]
    own_position: Int[Array, "B tiles 1 tile"]
    kv_heads: int
    head_width: int
    group: int

    @classmethod
    def of(cls, inputs: Inputs, entries: int, tile: int) -> "Entries":
        """Returns the entries of a call, padded to so many, in tiles."""
        batch, kv_heads, head_width = inputs.query.shape[0], *inputs.key.shape[2:]
        group, tiles, words = inputs.query.shape[2] // kv_heads, entries // tile, -(-tile // WORD)
        heads = heads_side_by_side(inputs, entries)
        if kv_heads > 1 and (heads.shape[2] // kv_heads % LANES or group * head_width % LANES):
            heads = heads.reshape(batch, entries, kv_heads, -1).transpose(0, 2, 1, 3)
        bits = entry_words(inputs, entries, tiles * words).astype(jnp.int32)
        return cls(
            heads,
            entry_positions(inputs, entries)[:, :, None],
            bits.reshape(batch, entries, tiles, words).transpose(0, 2, 1, 3),
            own_positions(inputs.position, entries).reshape(batch, tiles, 1, tile),
            kv_heads,
            head_width,
            group,
        )

    @property
    def operands(self) -> tuple[Array, ...]:
        """What a kernel is given: with several tiles, the heads a second time, for the tile that is seen."""
        tiles = self.own_position.shape[1]
        return (*([self.heads] * min(tiles, 2)), self.position, self.words, self.own_position)

    def specs(self, which: Callable[..., tuple[Any, Any, Any, Any]]) -> list[pl.BlockSpec]:
        """Returns the blocks of the operands.

        Args:
          which: from the indices of a step of the grid to batch row, KV head, tile, and tile that is seen.
        """
        tiles, _, tile = self.own_position.shape[1:]
        lanes = (self.group + 2) * self.head_width

        def at(*step: Any) -> tuple[Any, ...]:
            row, _, mine, _ = which(*step)
            return row, mine, 0

        def between(*step: Any) -> tuple[Any, ...]:
            row, _, mine, theirs = which(*step)
            return row, theirs, mine, 0

        def seen(*step: Any) -> tuple[Any, ...]:
            row, _, _, theirs = which(*step)
            return row, theirs, 0, 0

        return [
            *(self._heads(lanes, which, axis) for axis in (2, 3)[: min(tiles, 2)]),
            pl.BlockSpec((None, tile, 1), at),
            pl.BlockSpec((None, None, tile, self.words.shape[3]), between),
            pl.BlockSpec((None, None, 1, tile), seen),
        ]

    def out_spec(self, which: Callable[..., tuple[Any, Any, Any, Any]]) -> pl.BlockSpec:
        """Returns the blocks of the result."""
        return self._heads(self.group * self.head_width, which, 2)

    @property
    def result(self) -> jax.ShapeDtypeStruct:
        """What a kernel writes, in the order in which it reads."""
        lanes = self.group * self.head_width * (self.kv_heads if self._are_whole else 1)
        return jax.ShapeDtypeStruct((*self.heads.shape[:-1], lanes), self.heads.dtype)

    def by_entry(self, out: Float[Array, "..."]) -> Float[Array, "B E N H"]:
        """Returns what a kernel has written, entry by entry."""
        out = out if self._are_whole else out.transpose(0, 2, 1, 3)
        return out.reshape(*out.shape[:2], self.kv_heads * self.group, self.head_width)

    @property
    def _are_whole(self) -> bool:
        return self.heads.ndim == 3

    def _heads(self, lanes: int, which: Callable[..., tuple[Any, Any, Any, Any]], axis: int) -> pl.BlockSpec:
        """Returns the block of so many lanes of a KV head, of the tile that `which` gives at `axis`."""
        tile = self.own_position.shape[3]

        def index(*step: Any) -> tuple[Any, ...]:
            found = which(*step)
            return (found[0], found[axis], found[1]) if self._are_whole else (*found[:2], found[axis], 0)

        return pl.BlockSpec((None, tile, lanes) if self._are_whole else (None, None, tile, lanes), index)


def scratch(rows: int, head_width: int, columns: int, dtype: Any) -> list[Any]:
    """Returns the vector memory of a `Softmax`.

    Args:
      rows: queries of a KV head that are worked on at once.
      head_width: H.
      columns: scores of a row at once, at the most.
      dtype: of queries.
    """
    return [
        pltpu.VMEM((rows, head_width), dtype),
        pltpu.VMEM((rows, columns), jnp.float32),
        pltpu.VMEM((rows, LANES), jnp.float32),
        pltpu.VMEM((rows, LANES), jnp.float32),
        pltpu.VMEM((rows, head_width), jnp.float32),
    ]


class Softmax:
    """A KV head's softmax, carried in vector memory from block to block.

    Every lane of `peak` holds its row's highest score so far, in powers of two; the lanes of `total` add up to the sum
    of its weights. Row g · T + t is entry t's g-th head.
    """

    def __init__(self, queries: Any, scores: Any, peak: Any, total: Any, mixed: Any, *, options: Options):
        self.queries, self.scores, self.peak, self.total, self.mixed = queries, scores, peak, total, mixed
        self.options = options
        self.head_width = queries.shape[1]

    def begin(self, mine: Any) -> None:
        """Takes the queries of a tile of entries and has seen nothing."""
        tile = mine.shape[0]
        for head in range(self.queries.shape[0] // tile):
            self.queries[head * tile : (head + 1) * tile] = mine[
                :, head * self.head_width : (head + 1) * self.head_width
            ]
        self.peak[...] = jnp.full(self.peak.shape, MASKED, jnp.float32)
        self.total[...] = jnp.zeros(self.total.shape, jnp.float32)
        self.mixed[...] = jnp.zeros(self.mixed.shape, jnp.float32)

    def within(self, seen: Bool[Array, "T U"], position: Int[Array, "1 _"], entry_position: Any) -> Bool[Array, "T U"]:
        """Returns what is seen and in the window of each entry."""
        return seen & (position > entry_position[...] - self.options.window) if self.options.window else seen

    def absorb_entries(self, theirs: Any, words: Any, own_position: Any, entry_position: Any) -> None:
        """Adds a tile of the block's own entries, of which each entry sees its bits."""
        tile = theirs.shape[0]
        pair = theirs[:, self.queries.shape[0] // tile * self.head_width :]
        if tile < ROWS:  # No matrix product takes a single key: the other columns are hidden by their bits.
            pair = jnp.broadcast_to(pair, (ROWS, pair.shape[1]))
        seen = self.within(_bits(words[...], pair.shape[0]), own_position[...], entry_position)
        self.absorb(pair[:, : self.head_width], pair[:, self.head_width :], seen, last=False)

    def absorb(
        self,
        key: Array,
        value: Array,
        seen: Bool[Array, "T U"],
        *,
        last: bool,
        scales: tuple[Float[Array, "1 U"], Float[Array, "1 U"]] | None = None,
    ) -> None:
        """Adds a block of keys and values.

        Args:
          key, value: of a block of slots.
          seen: of each entry.
          last: slots are the last axis of keys and values.
          scales: of the slots' keys and values, where these are int8.
        """
        key_scale, value_scale = scales or (None, None)
        # Scores of some columns at a time, in one pass over all rows: a matrix unit takes each key and value once.
        columns = seen.shape[1]
        parts = [slice(start, min(start + COLUMNS, columns)) for start in range(0, columns, COLUMNS)]
        before = top = self.peak[...]
        for part in parts:
            scale = None if key_scale is None else key_scale[:, part]
            made = self._score(key[:, part] if last else key[part], seen[:, part], last, scale)
            self.scores[:, part] = made
            top = jnp.maximum(top, _fold(made, jnp.maximum, made.max))
        highest = jnp.broadcast_to(top.max(1, keepdims=True), top.shape)
        fade = jnp.exp2(before - highest)
        sums, sum_of_values = fade * self.total[...], _as_wide(fade, self.head_width) * self.mixed[...]
        for part in parts:
            weights = jnp.exp2(self.scores[:, part] - _as_wide(highest, part.stop - part.start))
            sums += _fold(weights, jnp.add, weights.sum)
            weighed = (value[:, part] if last else value[part]).astype(self.queries.dtype)
            if value_scale is not None:
                weights *= value_scale[:, part]
            sum_of_values += _product(weights.astype(weighed.dtype), weighed, 1 if last else 0)
        self.peak[...], self.total[...], self.mixed[...] = highest, sums, sum_of_values

    def end(self, out: Any) -> None:
        """Writes the mean of the values, zeros where a row has seen nothing."""
        tile = out.shape[0]
        # A row that sees nothing has weights that mean nothing: their sum is taken to be infinite.
        total = self.total[...].sum(1, keepdims=True)
        everything = jnp.where(self.peak[:, :1] > MASKED, total, jnp.float32(jnp.inf))
        mean = (self.mixed[...] / everything).astype(out.dtype)
        for head in range(self.queries.shape[0] // tile):
            out[:, head * self.head_width : (head + 1) * self.head_width] = mean[head * tile : (head + 1) * tile]

    def _score(
        self, key: Array, seen: Bool[Array, "T U"], last: bool, key_scale: Float[Array, "1 U"] | None
    ) -> Float[Array, "R U"]:
        made = _product(self.queries[...], key.astype(self.queries.dtype), 0 if last else 1)
        softcap = self.options.softcap
        scale = jnp.float32(self.options.scale / softcap if softcap else self.options.scale * LOG2_E)
        made = made * (scale if key_scale is None else scale * key_scale)
        if softcap:
            made = jnp.tanh(made) * jnp.float32(softcap * LOG2_E)
        by_head = made.reshape(-1, seen.shape[0], made.shape[1])
        return jnp.where(seen[None], by_head, MASKED).reshape(made.shape)


def _product(a: Float[Array, "X Y"], b: Float[Array, "_ _"], axis: int) -> Float[Array, "X Z"]:
    """Returns the product of `a` with `b` over `b`'s axis, float32; float32 operands are not rounded."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    numbers = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(a, b, numbers, precision=precision, preferred_element_type=jnp.float32)


def _fold(x: Float[Array, "R U"], join: Any, reduce: Any) -> Float[Array, "R lanes"]:
    """Joins the columns that share a lane; those of a part that is no multiple of lanes, in the first lane."""
    if x.shape[1] % LANES:
        first = jax.lax.broadcasted_iota(jnp.int32, (x.shape[0], LANES), 1) == 0
        return jnp.where(first, reduce(axis=1, keepdims=True), MASKED if join is jnp.maximum else 0.0)
    return functools.reduce(join, (x[:, i : i + LANES] for i in range(0, x.shape[1], LANES)))


def _as_wide(x: Float[Array, "R lanes"], columns: int) -> Float[Array, "R U"]:
    """Returns what all lanes hold, over so many columns."""
    return jnp.concatenate([x] * -(-columns // LANES), axis=1)[:, :columns]


def _bits(words: Shaped[Array, "T Words"], columns: int) -> Bool[Array, "T U"]:
    """Returns each entry's bits as booleans."""
    column = jax.lax.broadcasted_iota(jnp.int32, (words.shape[0], columns), 1)
    word = jnp.broadcast_to(words[:, :1], column.shape)
    for i in range(1, words.shape[1]):
        word = jnp.where(column >= i * WORD, words[:, i : i + 1], word)
    return ((word >> (column % WORD)) & 1) != 0
