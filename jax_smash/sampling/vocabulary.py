"""The likeliest tokens from a pass over pieces of the vocabulary, whose logits are never in memory together."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float, Int

from jax_smash.platform import target_platform
from jax_smash.pytree import pytree
from jax_smash.sampling.choice import highest, likeliest

LANES = 128
"""A piece has a multiple of so many tokens: the last axis of a TPU's tile."""

PIECE_LOGITS = 10 << 20
"""Logits of a piece, 40 MiB of them: they stay in the fast memory of a v5e or v6e, and smaller products are slower."""

BEHIND = 2**31 - 1
"""Behind every token."""

LogitsOf = Callable[[Int[Array, ""]], Float[Array, "R P"]]
"""From the first token of a piece to the logits of all of its tokens."""


@pytree
class Likeliest:
    """The likeliest tokens at each node.

    Attributes:
      values: their logits, the highest first; where a logit of the node is NaN, the first of them is NaN.
      tokens: their ids; of equal logits the lower id first.
      total: the logarithm of the sum of all logits' exponentials; None where nobody asked.
      logits: all of them; None where nobody asked.
    """

    values: Float[Array, "*batch n"]
    tokens: Int[Array, "*batch n"]
    total: Float[Array, "*batch"] | None = None
    logits: Float[Array, "*batch V"] | None = None


def likeliest_tokens(
    model: Any, hidden: Float[Array, "*batch D"], n: int, *, total: bool = False, keep: bool = False
) -> Likeliest:
    """Returns the n likeliest tokens after each entry, by the model's own way to find them where it has one.

    Args:
      model: bound to its parameters; or what says some of its tokens.
      hidden: its hidden states.
      n: at least 1.
      total: also add up.
      keep: also return all logits.
    """
    find: Any = getattr(model, "likeliest", None)
    if find is None:
        return likeliest_of(model.unembed(hidden), n, total=total, keep=keep)
    return find(hidden, n, total=total, keep=keep)


def likeliest_of(logits: Float[Array, "*batch V"], n: int, *, total: bool = False, keep: bool = False) -> Likeliest:
    """Returns the n likeliest tokens at each node, from all logits.

    Args:
      logits: of each node.
      n: at least 1.
      total: also add up.
      keep: also return them.
    """
    # Where there is a NaN, it is the highest.
    tokens = highest(logits)[..., None]
    values = jnp.take_along_axis(logits, tokens, axis=-1)
    if n > 1:
        more = likeliest(logits, n)
        values, tokens = (
            jnp.concatenate([x, y[..., 1:]], axis=-1) for x, y in zip((values, tokens), more, strict=True)
        )
    summed = jax.nn.logsumexp(logits, axis=-1) if total else None
    return Likeliest(values=values, tokens=tokens, total=summed, logits=logits if keep else None)


def likeliest_in_pieces(
    logits_of: LogitsOf, vocab_size: int, rows: int, n: int, *, piece: int, total: bool = False, keep: bool = False
) -> Likeliest:
    """Returns the n likeliest tokens of each row, a piece of the vocabulary at a time.

    Args:
      logits_of: makes the logits of a piece.
      vocab_size: V, at least `piece`.
      rows: R.
      n: at least 1, at most `piece`.
      piece: tokens of a piece, P.
      total: also add up.
      keep: also return all logits.
    """
    Best = tuple[Array, ...]  # Keys and ids of the likeliest, the sum of exponentials, any NaN, and what is kept.

    def absorb(i: Int[Array, ""], best: Best) -> Best:
        keys, tokens, summed, broken, kept = best
        start = jnp.minimum(i * piece, vocab_size - piece)
        logits = _row_by_row(logits_of(start))
        token = start + jnp.arange(piece, dtype=jnp.int32)[None]
        # A last piece that would end behind the vocabulary begins before its place. What was seen does not count again.
        fresh = token >= i * piece
        if total:
            summed = jnp.logaddexp(summed, jax.nn.logsumexp(logits, axis=1, where=fresh))
        nan = jnp.isnan(logits)
        key = jnp.where(fresh, jnp.where(nan, jnp.inf, logits), -jnp.inf)
        found = _highest(key, jnp.broadcast_to(token, key.shape), n)
        keys, tokens = (jnp.concatenate(pair, axis=1) for pair in zip((keys, tokens), found, strict=True))
        if keep:
            kept = _row_by_row(jax.lax.dynamic_update_slice_in_dim(kept, logits, start, axis=1))
        return *_highest(keys, tokens, n), summed, broken | nan.any(1), kept

    nothing = jnp.full((rows, n), -jnp.inf, jnp.float32)
    # Ids behind the vocabulary, so that of equal keys each has one of its own.
    none = jnp.broadcast_to(vocab_size + jnp.arange(n, dtype=jnp.int32), (rows, n))
    pieces = jnp.int32(-(-vocab_size // piece))
    # Every piece is written before anything is read.
    held = _row_by_row(jax.lax.empty((rows, vocab_size if keep else 0), jnp.float32))
    first = (nothing, none, nothing[:, 0], jnp.zeros((rows,), bool), held)
    keys, tokens, summed, broken, kept = jax.lax.fori_loop(jnp.int32(0), pieces, absorb, first)
    values = keys.at[:, 0].set(jnp.where(broken, jnp.nan, keys[:, 0]))
    return Likeliest(values=values, tokens=tokens, total=summed if total else None, logits=kept if keep else None)


def _row_by_row(logits: Float[Array, "R V"]) -> Float[Array, "R V"]:
    """Keeps a row's logits together on a TPU, which would else lay them out by tokens, and then all of them anew."""
    return with_layout_constraint(logits, Layout(major_to_minor=(0, 1))) if target_platform() == "tpu" else logits


def together(parts: Likeliest) -> Likeliest:
    """Joins what was found in several parts of the vocabulary, which are the first axis; logits are left out."""
    keys, tokens = (jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1) for x in (parts.values, parts.tokens))
    nan = jnp.isnan(keys)
    values, tokens = _highest(jnp.where(nan, jnp.inf, keys), tokens, parts.values.shape[2])
    values = values.at[:, 0].set(jnp.where(nan.any(1), jnp.nan, values[:, 0]))
    total = None if parts.total is None else jax.nn.logsumexp(parts.total, axis=0)
    return Likeliest(values=values, tokens=tokens, total=total)


def piece_size(vocab_size: int, rows: int) -> int | None:
    """Returns the tokens of a piece; None where all logits are few enough to be made together."""
    most = max(PIECE_LOGITS // rows // LANES * LANES, LANES)
    if vocab_size <= most:
        return None
    pieces = -(-vocab_size // most)
    return -(-vocab_size // pieces // LANES) * LANES


def _highest(keys: Float[Array, "R C"], tokens: Int[Array, "R C"], n: int) -> tuple[Array, Array]:
    """Returns the n highest keys of each row and their tokens, the highest first, of equal ones the lowest token.

    By n looks at what is there, which writes nothing. A sort, or taking away what was found, would write it all.
    """
    before = jnp.full((len(keys), 1), jnp.inf, jnp.float32), jnp.full((len(keys), 1), -1, jnp.int32)
    found = []
    for _ in range(n):
        key, token = before
        left = (keys < key) | ((keys == key) & (tokens > token))
        best = _best(jnp.where(left, keys, -jnp.inf), jnp.where(left, tokens, BEHIND))
        found.append(best)
        before = best[0][:, None], best[1][:, None]
    return jnp.stack([key for key, _ in found], axis=1), jnp.stack([token for _, token in found], axis=1)


def _best(keys: Float[Array, "R C"], tokens: Int[Array, "R C"]) -> tuple[Float[Array, "R"], Int[Array, "R"]]:
    """Returns each row's highest key and its token, of equal keys the lowest token."""

    def better(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] <= b[1]))
        return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])

    start = jnp.float32(-jnp.inf), jnp.int32(BEHIND)
    key, token = jax.lax.reduce((keys, tokens), start, better, (1,))
    return key, token
