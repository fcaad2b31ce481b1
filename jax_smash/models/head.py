"""The likeliest tokens by a model's head: the table of all tokens' vectors, read in pieces or by several devices."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float
from qwix import QArray

from jax_smash.pytree import replace
from jax_smash.sampling.vocabulary import Likeliest, likeliest_in_pieces, likeliest_of, piece_size, together
from jax_smash.sharding import constrain, dividing_axis

Logits = Callable[[Float[Array, "R D"], Any], Float[Array, "R X"]]
"""From vectors and rows of the head to logits."""


def likeliest_rows(
    hidden: Float[Array, "*batch D"],
    head: Float[Array, "V D"] | Float[QArray, "V D"],
    logits: Logits,
    n: int,
    *,
    total: bool = False,
    keep: bool = False,
) -> Likeliest:
    """Returns the n likeliest tokens behind each vector.

    Where the table is divided over devices by tokens, each looks among its own.

    Args:
      hidden: vectors.
      head: a row a token.
      logits: of vectors and rows.
      n: at least 1.
      total: also add up.
      keep: also return all logits, divided as the table is.
    """
    # Divided as the table's rows are. With whole vectors, the table would be gathered.
    flat = constrain(hidden.reshape(-1, hidden.shape[-1]), ..., "embed")
    find = functools.partial(_find, logits=logits, n=n, total=total, keep=keep)
    axis = dividing_axis("vocab", head.shape[0])
    found = find(flat, head) if axis is None else _among_devices(find, flat, head, axis)
    return jax.tree.map(lambda x: x.reshape(*hidden.shape[:-1], *x.shape[1:]), found)


def _find(hidden: Float[Array, "R D"], head: Any, *, logits: Logits, n: int, total: bool, keep: bool) -> Likeliest:
    """Returns the likeliest tokens of a table that is whole."""

    def whole(hidden: Array, head: Any) -> Likeliest:
        return likeliest_of(logits(hidden, head), n, total=total, keep=keep)

    rows, vocab_size = len(hidden), head.shape[0]
    piece = piece_size(vocab_size, rows)
    if piece is None:
        return whole(hidden, head)

    def in_pieces(hidden: Array, head: Any) -> Likeliest:
        def logits_of(start: Array) -> Float[Array, "R P"]:
            return logits(hidden, jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, piece), head))

        return likeliest_in_pieces(logits_of, vocab_size, rows, n, piece=piece, total=total, keep=keep)

    # A CPU's products of many rows are best made together.
    return jax.lax.platform_dependent(hidden, head, cpu=whole, default=in_pieces)


def _among_devices(
    find: Callable[[Float[Array, "R D"], Any], Likeliest], hidden: Float[Array, "R D"], head: Any, axis: str
) -> Likeliest:
    """Has each device look among its own tokens, and joins what they found."""

    def share(hidden: Array, head: Any) -> tuple[Any, ...]:
        found = find(hidden, head)
        before = jax.lax.axis_index(axis) * head.shape[0]
        named = replace(found, tokens=found.tokens + before, logits=None)
        joined = together(jax.lax.all_gather(named, axis))
        return joined.values, joined.tokens, joined.total, found.logits

    whole, rows = PartitionSpec(), jax.tree.map(lambda _: PartitionSpec(axis), head)
    specs = (whole, whole, whole, PartitionSpec(None, axis))
    divided = jax.shard_map(share, in_specs=(whole, rows), out_specs=specs, axis_names={axis}, check_vma=False)
    values, tokens, total, logits = divided(hidden, head)
    return Likeliest(values=values, tokens=tokens, total=total, logits=logits)
