"""Trees that grow where a drafter finds its own proposals likeliest: another shape for each row, of as many nodes."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.draft.trees.tree import DraftTree, tree_of
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
    batch, width = root.shape[0], max(min(BEAM, nodes - 1), 1)
    Beam = tuple[Array, Array, Array]  # Token, score and candidate number of each node.

    def level(beam: Beam, number: Array) -> tuple[Beam, tuple[Array, ...]]:
        """Gives children to the nodes of a level."""
        token, score, above = beam
        found, probability = children(token)
        order = jnp.broadcast_to(jnp.arange(found.shape[2], dtype=jnp.int32), found.shape)
        there = (found >= 0) & (order <= most_rank) & (score >= 0)[:, :, None]
        product = jnp.where(there, score[:, :, None] * jnp.clip(probability, 0.0, 1.0), ABSENT)
        parts = (found, product, jnp.broadcast_to(above[:, :, None], found.shape), order)
        made = tuple(part.reshape(batch, -1) for part in parts)
        best, place = jax.lax.top_k(made[1], width)
        following = jnp.take_along_axis(made[0], place, axis=1)
        # The root is candidate 0.
        return (following, best, 1 + number * made[0].shape[1] + place.astype(jnp.int32)), made

    alone = jnp.arange(width, dtype=jnp.int32)[None] == 0
    beam = (
        jnp.broadcast_to(root[:, None], (batch, width)),
        jnp.broadcast_to(jnp.where(alone, 1.0, ABSENT).astype(jnp.float32), (batch, width)),
        jnp.zeros((batch, width), jnp.int32),
    )
    _, made = jax.lax.scan(level, beam, jnp.arange(min(levels, nodes - 1), dtype=jnp.int32))
    zeros = jnp.zeros((batch, 1), jnp.int32)
    # The root has the highest score of all, so that it becomes node 0.
    first = (root[:, None], jnp.full((batch, 1), 2.0, jnp.float32), zeros, zeros)
    tokens, scores, parents, ranks = (
        jnp.concatenate([one, part.swapaxes(0, 1).reshape(batch, -1)], axis=1)
        for one, part in zip(first, made, strict=True)
    )
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
    kept, chosen = jax.lax.top_k(jnp.pad(score, ((0, 0), (0, room)), constant_values=ABSENT), nodes)
    valid = kept >= 0
    facts = jnp.pad(jnp.stack([token, above, rank], axis=2), ((0, 0), (0, room), (0, 0)))
    facts = jnp.take_along_axis(facts, chosen[:, :, None], axis=1)
    parent = jnp.argmax(facts[:, :, 1, None] == chosen[:, None].astype(jnp.int32), axis=2).astype(jnp.int32)
    tree = tree_of(facts[:, :, 0], jnp.where(valid, parent, 0), valid, levels=levels)
    # Where nothing is proposed there is no trial of any rank.
    return replace(tree, rank=jnp.where(valid, facts[:, :, 2], -1))
