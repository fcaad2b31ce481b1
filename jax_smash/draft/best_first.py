"""Trees that grow where a drafter finds its own proposals likeliest: another shape for each row, of as many nodes."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.draft.tree import DraftTree, tree_of
from jax_smash.pytree import replace

BEAM = 32
"""Nodes of a level that get children, at most."""

ABSENT = -1.0
"""Score of a node that is not proposed: below every product of probabilities."""

Children = Callable[[Int[Array, "B A"]], tuple[Int[Array, "B A k"], Float[Array, "B A k"]]]
"""From tokens to the tokens that may follow each, likeliest first, and their probabilities; −1 is no token."""


def grow_best_first(
    root: Int[Array, "B"], children: Children, *, nodes: int, levels: int, most_rank: Int[Array, ""]
) -> DraftTree:
    """Returns the tree of the nodes whose probabilities along the path from the root have the highest product.

    Level by level the likeliest `BEAM` nodes get children; of all that were seen the likeliest stay. A node's product
    is at most its parent's, and of equal ones the upper stands first, so what stays is a tree. With at most `BEAM`
    nodes below the root no tree of as many has a higher sum of products; with more, what is missed is children of
    nodes that so many of their level outdo.

    Args:
      root: the pending token of each row.
      children: what may follow a token.
      nodes: M, the root included; those that nothing is found for are not valid.
      levels: no node is deeper.
      most_rank: children of a higher rank are not proposed; 0 makes a chain.
    """
    batch = root.shape[0]
    zeros = jnp.zeros((batch, 1), jnp.int32)
    # The root has the highest score of all, so that it becomes node 0.
    token, score, above, rank = [root[:, None]], [jnp.full((batch, 1), 2.0, jnp.float32)], [zeros], [zeros]
    beam_token, beam_score, beam = root[:, None], jnp.ones((batch, 1), jnp.float32), zeros
    seen = 1
    for level in range(1, min(levels, nodes - 1) + 1):
        found, probability = children(beam_token)
        order = jnp.broadcast_to(jnp.arange(found.shape[2], dtype=jnp.int32), found.shape)
        there = (found >= 0) & (order <= most_rank) & (beam_score >= 0)[:, :, None]
        product = jnp.where(there, beam_score[:, :, None] * jnp.clip(probability, 0.0, 1.0), ABSENT)
        token.append(found.reshape(batch, -1))
        score.append(product.reshape(batch, -1))
        above.append(jnp.broadcast_to(beam[:, :, None], found.shape).reshape(batch, -1))
        rank.append(order.reshape(batch, -1))
        if level < levels:
            beam_score, place = jax.lax.top_k(score[-1], min(score[-1].shape[1], nodes - 1, BEAM))
            beam_token, beam = jnp.take_along_axis(token[-1], place, axis=1), seen + place.astype(jnp.int32)
        seen += score[-1].shape[1]
    tokens, scores, parents, ranks = (jnp.concatenate(part, axis=1) for part in (token, score, above, rank))
    return _likeliest(tokens, scores, parents, ranks, nodes, levels)


def _likeliest(
    token: Int[Array, "B C"],
    score: Float[Array, "B C"],
    above: Int[Array, "B C"],
    rank: Int[Array, "B C"],
    nodes: int,
    levels: int,
) -> DraftTree:
    """Returns the tree of the candidates of the highest scores, the highest first."""
    room = max(0, nodes - score.shape[1])
    token, above, rank = (jnp.pad(part, ((0, 0), (0, room))) for part in (token, above, rank))
    kept, chosen = jax.lax.top_k(jnp.pad(score, ((0, 0), (0, room)), constant_values=ABSENT), nodes)
    valid = kept >= 0
    row = jnp.arange(token.shape[0], dtype=jnp.int32)[:, None]
    node = jnp.broadcast_to(jnp.arange(nodes, dtype=jnp.int32), chosen.shape)
    node_of = jnp.zeros_like(token).at[row, chosen].set(node)
    parent = jnp.take_along_axis(node_of, jnp.take_along_axis(above, chosen, axis=1), axis=1)
    tree = tree_of(jnp.take_along_axis(token, chosen, axis=1), jnp.where(valid, parent, 0), valid, levels=levels)
    # Where nothing is proposed there is no trial of any rank.
    return replace(tree, rank=jnp.where(valid, jnp.take_along_axis(rank, chosen, axis=1), -1))
