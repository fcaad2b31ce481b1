"""Blocks of masked tokens behind random tokens of packed rows, each as decoding would fill it there."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jax_smash.attention.formula import QUERIES_AT_ONCE
from jax_smash.cache import Block, BlockKV, Earlier
from jax_smash.draft.trees.tree import pack
from jax_smash.models.dflash import DFlash
from jax_smash.models.transformer import Transformer
from jax_smash.pytree import pytree
from jax_smash.shapes import round_up
from train.data.rows import Batch
from train.parts.drafter.objective import Taps

MIXING = np.uint32(2654435761)
"""An odd factor, by which neighbouring places differ in all bits."""


@pytree
class Anchors:
    """The tokens that blocks begin with.

    Attributes:
      entry: of each in its row.
      there: False where a row has fewer.
    """

    entry: Int[Array, "B A"]
    there: Bool[Array, "B A"]


def drawn_anchors(batch: Batch, count: int, seed: int) -> Anchors:
    """Returns different random tokens of each row, all of those that can be anchors where they are not more.

    A token can be an anchor where the next one counts, and another of its document stands before it: a target has read
    one, at least, whenever something is drafted. What is drawn depends on the row's tokens and the seed alone, so that
    a run that goes on draws what it would have drawn, however rows are divided among devices.

    Args:
      batch: the rows.
      count: tokens of each row, at most.
      seed: of the run.
    """
    tokens, segments = batch.tokens, batch.segments
    before = jnp.pad(segments, ((0, 0), (1, 0)))[:, :-1]
    can = (segments > 0) & (before == segments) & (batch.weights > 0)
    place = jnp.arange(1, tokens.shape[1] + 1, dtype=jnp.uint32) * MIXING
    mark = jnp.sum((tokens.astype(jnp.uint32) + 1) * place[None], axis=1, dtype=jnp.uint32)
    keys = jax.vmap(lambda mark: jax.random.fold_in(jax.random.key(seed), mark))(mark)
    score = jax.vmap(lambda key: jax.random.uniform(key, tokens.shape[1:]))(keys)
    score, entry = jax.lax.top_k(jnp.where(can, score, -1.0), min(count, tokens.shape[1]))
    return Anchors(entry=entry.astype(jnp.int32), there=score >= 0)


def filled_blocks(
    drafter: DFlash,
    target: Transformer,
    taps: Taps,
    batch: Batch,
    anchors: Anchors,
) -> Float[Array, "B A masked D"]:
    """Returns what the drafter makes of the masked tokens of each block.

    A block sees the context of the tokens before its anchor, of the same document, and itself.

    Source: Chen et al. 2026, "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036).
    Differs: blocks are attended a few at a time, and none meets the keys of all others only to hide them.

    Args:
      drafter: that is trained.
      target: whose vectors of tokens are used.
      taps: of the target, by number.
      batch: the rows.
      anchors: of the blocks.
    """
    config, rows = drafter.config, len(batch.tokens)
    everything = Block.causal(batch.segments > 0)
    context = drafter.context([taps[i] for i in config.taps], batch.positions, everything)
    # Attention lets so many queries meet all keys up to the last of them, and a block's entries see later ones.
    at_once = max(1, min(anchors.entry.shape[1], QUERIES_AT_ONCE // config.block_size))

    def pieces(x: Array) -> Array:
        room = round_up(x.shape[1], at_once) - x.shape[1]
        return jnp.pad(x, ((0, 0), (0, room))).reshape(rows, -1, at_once).swapaxes(0, 1)

    @jax.checkpoint
    def of_piece(some: Anchors) -> Float[Array, "B few masked D"]:
        return _filled(drafter, target, context, batch, some)

    made = jax.lax.map(of_piece, jax.tree.map(pieces, anchors)).swapaxes(0, 1)
    return made.reshape(rows, -1, *made.shape[3:])[:, : anchors.entry.shape[1]]


def _filled(
    drafter: DFlash, target: Transformer, context: BlockKV, batch: Batch, anchors: Anchors
) -> Float[Array, "B A masked D"]:
    """Returns what the drafter makes of the masked tokens of some blocks, whose entries go through it together."""
    rows, count = anchors.entry.shape
    size = drafter.config.block_size
    token, position = (jnp.take_along_axis(x, anchors.entry, axis=1) for x in (batch.tokens, batch.positions))
    position = position[:, :, None] + jnp.arange(size, dtype=jnp.int32)[None, None]
    seen = visible(batch.segments, anchors, size)
    valid = jnp.concatenate([batch.segments > 0, jnp.repeat(anchors.there, size, axis=1)], axis=1)
    block = Block(valid=valid, ancestors=pack(seen), earlier=Earlier(block_kv=context, position=batch.positions))
    vectors = drafter.masked(token, target).reshape(rows, count * size, -1)
    made = drafter.filled(vectors, position.reshape(rows, -1), None, block)
    return made.reshape(rows, count, size, -1)[:, :, 1:]


def visible(segments: Int[Array, "B T"], anchors: Anchors, size: int) -> Bool[Array, "B entries all"]:
    """Returns which token of the row, and then which entry of a block, each entry of the blocks sees.

    Args:
      segments: documents of the row; 0 is padding.
      anchors: of the blocks.
      size: entries of a block.
    """
    of_anchor = jnp.take_along_axis(segments, anchors.entry, axis=1)
    place = jnp.arange(segments.shape[1], dtype=jnp.int32)[None, None]
    context = (segments[:, None] == of_anchor[:, :, None]) & (place < anchors.entry[:, :, None])
    context = jnp.repeat(context, size, axis=1)
    block = jnp.arange(math.prod((anchors.entry.shape[1], size)), dtype=jnp.int32) // size
    own = jnp.broadcast_to(block[:, None] == block[None], (len(segments), len(block), len(block)))
    return jnp.concatenate([context, own], axis=2)
