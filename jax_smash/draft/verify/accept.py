"""Which drafted tokens are kept: those that plain decoding would have emitted."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from jax_smash.draft.trees.tree import DraftTree, all_ancestors, at_nodes, unpack
from jax_smash.pytree import pytree


@pytree
class Accepted:
    """The path that is kept.

    Attributes:
      path: node of each depth, the root first; anything past `count`.
      count: nodes kept, the root included, so at least 1. As many tokens are emitted: the target's own at each.
    """

    path: Int[Array, "B P"]
    count: Int[Array, "B"]


def accept(tree: DraftTree, target: Int[Array, "B M"]) -> Accepted:
    """Returns the longest path on which each node's token is what the target chose at its parent.

    Where the target's choice is its likeliest token, that is greedy verification. Where it is argmax(processed logits +
    noise of the place), the same comparison is lossless for sampling: what is emitted is the target's choice, token for
    token what plain decoding draws with the same key, whatever was proposed.

    Args:
      tree: the drafted nodes.
      target: the token that the target chose at each node.
    """
    if tree.token.shape[1] == 1:
        # Nothing was drafted.
        return Accepted(path=jnp.zeros_like(tree.token), count=jnp.ones_like(tree.token[:, 0]))
    wanted = at_nodes(target, tree.parent)
    agrees = (tree.valid & (tree.token == wanted)).at[:, 0].set(True)
    kept = all_ancestors(agrees, tree.ancestors)
    count = jnp.where(kept, tree.depth + 1, 0)
    # The first of the deepest: a sibling proposed twice counts once.
    deepest = jnp.argmax(count, axis=1).astype(jnp.int32)
    return Accepted(path=path_to(tree, deepest), count=count.max(1))


def path_to(tree: DraftTree, node: Int[Array, "B"]) -> Int[Array, "B P"]:
    """Returns the nodes from the root to a node, by depth; 0 past its depth."""
    nodes = tree.token.shape[1]
    here = node[:, None] == jnp.arange(nodes, dtype=jnp.int32)[None]
    on_path = unpack(jnp.where(here[:, :, None], tree.ancestors, jnp.uint32(0)).sum(1, dtype=jnp.uint32), nodes)
    depth = jnp.arange(tree.levels + 1, dtype=jnp.int32)
    place = on_path[:, None] & (tree.depth[:, None] == depth[None, :, None])
    return jnp.argmax(place, axis=2).astype(jnp.int32)
