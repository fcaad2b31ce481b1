"""Verification of sampled proposals: what is emitted follows the target's distribution, whatever was proposed."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jax_smash.draft.trees.tree import DraftTree, vectors_at
from jax_smash.draft.verify.accept import Accepted, path_to
from jax_smash.draft.verify.noise import Purpose, gumbel, place_key
from jax_smash.draft.verify.rules import Independent, Rule, Trial, accepts
from jax_smash.draft.verify.walk import NodeLogits
from jax_smash.pytree import pytree
from jax_smash.sampling import highest


@pytree
class _Walk:
    """How far each row has come down its tree.

    Attributes:
      node: the last one kept.
      child: of that node, to be tried next; 0, which is nobody's child, where none is left.
      trial: of that node's children.
    """

    node: Int[Array, "B"]
    child: Int[Array, "B"]
    trial: Trial


def reject(
    tree: DraftTree,
    logits: NodeLogits | Float[Array, "B M V"],
    key: Key[Array, "B"],
    token_length: Int[Array, "B"],
    *,
    rule: Rule | None = None,
) -> tuple[Accepted, Int[Array, "B"]]:
    """Returns a path of drawn nodes to keep and the token that follows it: together, draws from the target.

    From the root down, a node's valid children are tried in node order until one is kept. Where none is, the token is
    drawn from what the children leave of the target's distribution; below a leaf, from all of it. What a row keeps
    depends on its tree, its logits, its key and its length alone, and on no number that plain sampling draws.

    Args:
      tree: the drafted nodes, with `proposal`: of each node, the distribution that its children were drawn from, in
        node order and as the rule says. Which nodes are valid must not depend on the tokens drawn for them or beside
        them, save that a child without probability is invalid; where siblings differ, the valid ones come first.
      logits: of the target at each node, processed: what it can not emit is −inf. `NodeLogits` are made where they are
        needed.
      key: of each row.
      token_length: tokens of the sequence, the root's included; the root's children propose the token of this index.
      rule: how the children were drawn and are tried; by default `Independent`.

    Returns:
      The path, whose nodes' own tokens are emitted below the root; and the token emitted after it.

    Raises:
      ValueError: the tree has no proposal, or one of another shape than the logits.
    """
    proposal = tree.proposal
    if proposal is None:
        raise ValueError(
            "a tree must hold the proposal its nodes were drawn from to be verified by rejection; got None"
        )
    shape = logits.logits.shape if isinstance(logits, NodeLogits) else logits.shape
    if proposal.shape != shape:
        raise ValueError(f"the proposal must be of the logits' shape {shape}; got {proposal.shape}")
    rule = Independent() if rule is None else rule
    root = jnp.zeros_like(token_length)

    def arrive(node: Int[Array, "B"]) -> Trial:
        children = (tree.valid & (tree.parent == node[:, None])).at[:, 0].set(False)
        there = logits.at(node) if isinstance(logits, NodeLogits) else _at(logits, node)
        target = jax.nn.softmax(there.astype(jnp.float32), axis=-1)
        return rule.arrive(target, _at(proposal, node), children.sum(1, dtype=jnp.int32))

    def try_child(walk: _Walk) -> _Walk:
        tried = walk.child > 0
        token = _at(tree.token, walk.child)
        position = token_length + _at(tree.depth, walk.child) - 1
        accepted = tried & accepts(walk.trial, token, _chance(key, position, walk.child))
        node = jnp.where(accepted, walk.child, walk.node)
        trial = _where(tried & ~accepted, rule.refuse(walk.trial, token), walk.trial)
        # Reading logits of a whole vocabulary is left out where every row stays.
        trial = jax.lax.cond(
            accepted.any(),
            lambda: _where(accepted, arrive(node), trial),
            lambda: trial,
        )
        return _Walk(node=node, child=jnp.where(tried, _next_child(tree, node, walk.child), 0), trial=trial)

    walk = jax.lax.while_loop(
        lambda walk: (walk.child > 0).any(),
        try_child,
        _Walk(node=root, child=_next_child(tree, root, root), trial=arrive(root)),
    )
    depth = _at(tree.depth, walk.node)
    # No node: a row draws this once a position, whichever node it stands at.
    after = place_key(key, Purpose.AFTER, (token_length + depth)[:, None], root[:, None])[:, 0]
    noise = gumbel(after, shape[-1])
    token = highest(jnp.log(rule.rest(walk.trial)) + noise)
    return Accepted(path=path_to(tree, walk.node), count=depth + 1), token


def _next_child(tree: DraftTree, node: Int[Array, "B"], last: Int[Array, "B"]) -> Int[Array, "B"]:
    """Returns the first valid child of a node that stands after `last`, or 0."""
    index = jnp.arange(tree.token.shape[1], dtype=jnp.int32)[None]
    return jnp.argmax(tree.valid & (tree.parent == node[:, None]) & (index > last[:, None]), axis=1).astype(jnp.int32)


def _chance(key: Key[Array, "B"], position: Int[Array, "B"], node: Int[Array, "B"]) -> Float[Array, "B"]:
    place = place_key(key, Purpose.TRIAL, position[:, None], node[:, None])[:, 0]
    return jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32))(place)


def _at(values: Array, node: Int[Array, "B"]) -> Array:
    """Returns the entry of one node a row."""
    if values.ndim == 3:
        return vectors_at(values, node)[:, 0]
    place = node.reshape(-1, *[1] * (values.ndim - 1))
    return jnp.take_along_axis(values, place, axis=1)[:, 0]


def _where(rows: Array, some: Trial, others: Trial) -> Trial:
    return jax.tree.map(lambda x, y: jnp.where(rows.reshape(-1, *[1] * (x.ndim - 1)), x, y), some, others)
