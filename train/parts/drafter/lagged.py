"""What Chimera's layer makes of packed rows, for each head as in decoding: the target has read less than was said."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Block
from jax_smash.draft.trees.tree import pack
from jax_smash.models.chimera import Chimera
from jax_smash.models.grams import NONE
from train.data.rows import Batch
from train.data.states import StateBatch


def packed_codes(drafter: Chimera, target: Any, batch: Batch | StateBatch) -> Float[Array, "B T D"]:
    """Returns the code of each token of packed documents: of the gram that ends with it, or of its document up to it.

    Args:
      drafter: whose encoder is used.
      target: bound, whose vectors of tokens are used.
      batch: the rows.
    """
    if not drafter.config.encodes_text:
        return drafter.codes(packed_grams(batch.tokens, batch.segments, drafter.config.gram), target)
    block = Block.causal(batch.segments > 0, batch.segments)
    return drafter.text_codes(batch.tokens, batch.positions, None, block, target)[0]


def packed_grams(tokens: Int[Array, "B T"], segments: Int[Array, "B T"], gram: int) -> Int[Array, "B T g"]:
    """Returns the gram that ends with each token of packed documents; `NONE` before a document's first."""
    found = [tokens]
    for places in range(1, gram):
        same = moved(segments, places) == segments
        found.append(jnp.where(same, moved(tokens, places), NONE))
    return jnp.stack(found[::-1], axis=2)


def moved(x: Int[Array, "B T"] | Float[Array, "B T D"], places: int) -> Int[Array, "B T"] | Float[Array, "B T D"]:
    """Returns what stood so many places before each entry; 0 where the row had not begun."""
    width = [(0, 0), (places, 0)] + [(0, 0)] * (x.ndim - 2)
    return jnp.pad(x, width)[:, : x.shape[1]]


def read_by_target_before(segments: Int[Array, "B T"], heads: int) -> Bool[Array, "B T heads"]:
    """Marks the tokens of which head h guesses the follower: the target has read one of their document before it.

    For head h these are the tokens that h + 1 others of their document stand before.
    """
    return jnp.stack([(moved(segments, h + 1) == segments) & (segments > 0) for h in range(heads)], axis=2)


def lagged(
    model: Chimera,
    hidden: Float[Array, "B T D"],
    codes: Float[Array, "B T D"],
    position: Int[Array, "B T"],
    segments: Int[Array, "B T"],
) -> Float[Array, "H B T D"]:
    """Returns what the layer makes of each token's gram, for each head.

    Head h's token t sees the target's hidden states up to token t − 1 − h, and the grams up to its own: what there is
    when the target has read so many tokens, and the h tokens behind the pending one are drafted as the text has them.

    Source: Zeng et al. 2024, "Chimera", sections 4.1.2 and 4.1.3.
    Differs: the tokens between are the text's, where the published code takes the likeliest of the heads before.

    Args:
      model: the drafter.
      hidden: of the target.
      codes: of the grams.
      position: of each token.
      segments: tokens see only those of their own; 0 is padding.
    """
    length = hidden.shape[1]
    entries = jnp.concatenate([hidden.astype(codes.dtype), codes], axis=1)
    position, segments = (jnp.concatenate([x, x], axis=1) for x in (position, segments))
    place = jnp.arange(length, dtype=jnp.int32)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def of_head(head: Int[Array, ""]) -> Float[Array, "B T D"]:
        behind = place[:, None] - place[None]
        visible = jnp.concatenate([behind > head, behind >= 0], axis=1)
        seen = jnp.broadcast_to(pack(visible)[None], (len(hidden), length, -(-2 * length // 32)))
        block = Block(valid=segments > 0, ancestors=seen, segments=segments)
        return model.forward(entries, position, None, block, length).hidden

    return jax.lax.map(of_head, jnp.arange(model.config.decoding_heads, dtype=jnp.int32))
