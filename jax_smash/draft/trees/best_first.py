"""Trees that grow where a drafter finds its own proposals likeliest: another shape for each row, of as many nodes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.draft.trees.tree import DraftTree, tree_of
from jax_smash.pytree import pytree, replace

BEAM = 32
"""Nodes of a level that get children, at most, where a drafter looks them up."""

ABSENT = -1.0
"""Score of a node that is not proposed: below every product of probabilities."""

CHAIN = 2.0
"""Score of a node of the chain that stays whatever its product is: above every product of probabilities."""

ROOT = 3.0
"""Score of the root, which becomes node 0."""

FIRST = 3.0
"""Factor on the least product of probabilities, for the likeliest child of the root where unlikely nodes are left out.

That node makes a drafted step of a plain one, so it costs more than any later node.
"""


@pytree
class Beam:
    """The nodes of one level that get children, the best first.

    Attributes:
      token: of each; anything where there is no node.
      product: of the probabilities along the path to it; `ABSENT` where there is no node.
      score: the same, but for the chain that stays.
      number: of the candidate that the node is, of all that were seen.
      above: place of its parent in the beam of the level before.
    """

    token: Int[Array, "B A"]
    product: Float[Array, "B A"]
    score: Float[Array, "B A"]
    number: Int[Array, "B A"]
    above: Int[Array, "B A"]


@pytree
class Candidates:
    """The children of one level's nodes.

    Attributes:
      token: of each.
      product, score: as in `Beam`.
      above: number of its parent.
      rank: among its siblings.
    """

    token: Int[Array, "B C"]
    product: Float[Array, "B C"]
    score: Float[Array, "B C"]
    above: Int[Array, "B C"]
    rank: Int[Array, "B C"]


Found = tuple[Int[Array, "B A k"], Float[Array, "B A k"]]
"""Tokens that may follow each node, likeliest first, and their probabilities; −1 is no token."""

Children = Callable[[Int[Array, "B A"]], Found]
"""From tokens to what may follow each."""

Expand = Callable[[Any, Beam, Int[Array, ""]], tuple[Any, Found]]
"""From what a drafter carries, a beam and its depth to what it carries then, and what may follow each node."""


def grow_best_first(
    root: Int[Array, "B"], children: Children, *, nodes: int, levels: int, most_rank: Int[Array, ""]
) -> DraftTree:
    """Returns the tree of the nodes whose probabilities along the path from the root have the highest product.

    With at most `BEAM` nodes below the root no tree of as many has a higher sum of products; with more, what is missed
    is children of nodes that so many of their level outdo.

    Args:
      root: the pending token of each row.
      children: what may follow a token.
      nodes: M, the root included; those that nothing is found for are not valid.
      levels: no node is deeper.
      most_rank: children of a higher rank are not proposed; 0 makes a chain.
    """

    def allowed(found: Found) -> Found:
        token, probability = found
        rank = jnp.arange(token.shape[2], dtype=jnp.int32)[None, None]
        return jnp.where(rank <= most_rank, token, -1), probability

    def expand(carry: None, beam: Beam, depth: Int[Array, ""]) -> tuple[None, Found]:
        return None, allowed(children(beam.token))

    first, beam = allowed(children(root[:, None])), max(min(BEAM, nodes - 1), 1)
    return grow_by(root, first, expand, None, nodes=nodes, levels=levels, beam=beam)


def grow_by(
    root: Int[Array, "B"],
    first: Found,
    expand: Expand,
    carry: Any,
    *,
    nodes: int,
    levels: int,
    beam: int,
    chain: bool = False,
    least: float = 0.0,
) -> DraftTree:
    """Returns the tree of the likeliest of the nodes that a drafter proposes level by level.

    Level by level the nodes with the highest product of probabilities along their paths get children, as many as the
    beam has; of all nodes that were seen, the likeliest stay. A node's product is at most its parent's, and of equal
    ones the upper stands first, so what stays is a tree.

    Args:
      root: the pending token of each row.
      first: what may follow the root, `[B, 1, k]`.
      expand: says what may follow the nodes of a level, from 1 on.
      carry: what it is given at first.
      nodes: M, the root included; those that nothing is found for are not valid.
      levels: no node is deeper.
      beam: A, nodes of a level that get children.
      chain: the likeliest child of the root, its likeliest child and so on stay in any case, and get children.
      least: no node with a lower product is proposed, and nothing at all where no child of the root has `FIRST` times
        as much; a level that no node has come to is not expanded.
    """
    batch, fan = root.shape[0], first[0].shape[2]
    top = Beam(
        token=root[:, None],
        product=jnp.ones((batch, 1), jnp.float32),
        score=jnp.full((batch, 1), CHAIN if chain else 1.0, jnp.float32),
        number=jnp.zeros((batch, 1), jnp.int32),
        above=jnp.zeros((batch, 1), jnp.int32),
    )
    begin = _candidates(top, _worth(first, FIRST * least), chain=chain, least=least)

    def expanded(carry: Any, beam: Beam, depth: Int[Array, ""]) -> tuple[Any, Found]:
        if not least:
            return expand(carry, beam, depth)
        shapes = jax.eval_shape(expand, carry, beam, depth)[1]
        nothing = tuple(jnp.full(x.shape, -1, x.dtype) for x in shapes)
        return jax.lax.cond((beam.product >= 0).any(), expand, lambda carry, *_: (carry, nothing), carry, beam, depth)

    def level(state: tuple[Any, Beam], depth: Int[Array, ""]) -> tuple[tuple[Any, Beam], Candidates]:
        carry, upper = state
        carry, found = expanded(carry, upper, depth)
        made = _candidates(upper, found, chain=chain, least=least)
        number = 1 + fan + (depth - 1) * made.token.shape[1]
        return (carry, _best(made, number, beam, fan)), made

    start = (carry, _best(begin, jnp.int32(1), beam, fan))
    depths = jnp.arange(1, min(levels, nodes - 1), dtype=jnp.int32)
    _, made = jax.lax.scan(level, start, depths)
    root_alone = Candidates(
        token=root[:, None],
        product=top.product,
        score=jnp.full((batch, 1), ROOT, jnp.float32),
        above=top.number,
        rank=top.number,
    )
    deeper = jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(batch, -1), made)
    parts = [root_alone, begin, deeper] if min(levels, nodes - 1) else [root_alone]
    return _likeliest(jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *parts), nodes, levels)


def _worth(first: Found, least: float) -> Found:
    """Returns what may follow the root; nothing where all of it is less likely than this."""
    token, probability = first
    if not least:
        return first
    highest = jnp.where(token >= 0, probability, 0.0).max(-1, keepdims=True)
    return jnp.where(highest >= least, token, -1), probability


def _candidates(upper: Beam, found: Found, *, chain: bool, least: float) -> Candidates:
    """Returns the children of a level's nodes with their products."""
    token, probability = found
    rank = jnp.arange(token.shape[2], dtype=jnp.int32)[None, None]
    there = (token >= 0) & (upper.product >= 0)[:, :, None]
    product = upper.product[:, :, None] * jnp.clip(probability, 0.0, 1.0)
    there &= product >= least
    product = jnp.where(there, product, ABSENT)
    stays = there & (upper.score == CHAIN)[:, :, None] & (rank == 0)

    def flat(x: Array) -> Array:
        return jnp.broadcast_to(x, token.shape).reshape(token.shape[0], -1)

    return Candidates(
        token=flat(token),
        product=flat(product),
        score=flat(jnp.where(stays, CHAIN, product) if chain else product),
        above=flat(upper.number[:, :, None]),
        rank=flat(rank),
    )


def _best(made: Candidates, number: Int[Array, ""], beam: int, fan: int) -> Beam:
    """Returns the candidates of a level that get children.

    Args:
      made: the level's candidates.
      number: of the first of them.
      beam: that many.
      fan: children of a node.
    """
    room = max(0, beam - made.score.shape[1])
    score, place = jax.lax.top_k(jnp.pad(made.score, ((0, 0), (0, room)), constant_values=ABSENT), beam)
    place = jnp.minimum(place.astype(jnp.int32), made.score.shape[1] - 1)
    token, product = (jnp.take_along_axis(x, place, axis=1) for x in (made.token, made.product))
    product = jnp.where(score == ABSENT, ABSENT, product)
    return Beam(token=token, product=product, score=score, number=number + place, above=place // fan)


def _likeliest(made: Candidates, nodes: int, levels: int) -> DraftTree:
    """Returns the tree of the candidates of the highest scores, the highest first."""
    room = max(0, nodes - made.score.shape[1])
    kept, chosen = jax.lax.top_k(jnp.pad(made.score, ((0, 0), (0, room)), constant_values=ABSENT), nodes)
    valid = kept >= 0
    facts = jnp.pad(jnp.stack([made.token, made.above, made.rank], axis=2), ((0, 0), (0, room), (0, 0)))
    facts = jnp.take_along_axis(facts, chosen[:, :, None], axis=1)
    parent = jnp.argmax(facts[:, :, 1, None] == chosen[:, None].astype(jnp.int32), axis=2).astype(jnp.int32)
    tree = tree_of(facts[:, :, 0], jnp.where(valid, parent, 0), valid, levels=levels)
    # Where nothing is proposed there is no trial of any rank.
    return replace(tree, rank=jnp.where(valid, facts[:, :, 2], -1))
