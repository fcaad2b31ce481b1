"""Verification by going down a tree: the target is asked only at nodes that are reached."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jax_smash.draft.trees.tree import DraftTree, vectors_at
from jax_smash.draft.verify.accept import Accepted
from jax_smash.pytree import pytree
from jax_smash.sampling import choose


@dataclasses.dataclass(frozen=True)
class NodeLogits:
    """The target's processed logits at the nodes of a tree, made where they are asked for.

    Attributes:
      logits: before any processor, at every node.
      paths: the tokens from the root to each node, as `DraftTree.paths` returns them.
      process: the processors, of logits and paths of as many nodes.
    """

    logits: Float[Array, "B M V"]
    paths: Int[Array, "B M levels"]
    process: Callable[[Float[Array, "B n V"], Int[Array, "B n levels"]], Float[Array, "B n V"]]

    def at(self, node: Int[Array, "B"]) -> Float[Array, "B V"]:
        """Returns the logits at one node a row."""
        path = jnp.take_along_axis(self.paths, node[:, None, None], axis=1)
        return self.process(vectors_at(self.logits, node), path)[:, 0]

    def everywhere(self) -> Float[Array, "B M V"]:
        """Returns the logits at all nodes."""
        return self.process(self.logits, self.paths)


@pytree
class _Walk:
    """How far each row has come down its tree.

    Attributes:
      depth: of the nodes that are asked next, the same for all rows.
      node: the last one kept.
      going: rows that kept a node of this depth.
      path: kept nodes by depth.
      chosen: what the target chose behind each of them.
    """

    depth: Int[Array, ""]
    node: Int[Array, "B"]
    going: Bool[Array, "B"]
    path: Int[Array, "B P"]
    chosen: Int[Array, "B P"]


def walk_down(
    tree: DraftTree, logits: NodeLogits, key: Key[Array, "B"], token_length: Int[Array, "B"], *, sampled: bool
) -> tuple[Accepted, Int[Array, "B P"]]:
    """Returns what `verify.accept` returns for the target's choices, and these choices behind the kept nodes.

    From the root on, the target chooses the next token, with the noise of its place where rows sample. A row goes on
    to the first child with that token. Where siblings have one token, only the first of them is looked below.

    Args:
      tree: the drafted nodes.
      logits: of the target.
      key: of each row.
      token_length: tokens of each row's sequence, the root's included.
      sampled: some row samples.
    """
    zeros = jnp.zeros((len(token_length), tree.levels + 1), jnp.int32)
    index = jnp.arange(tree.token.shape[1], dtype=jnp.int32)[None]

    def ask(walk: _Walk) -> _Walk:
        place = (token_length + walk.depth)[:, None]
        token = choose(logits.at(walk.node)[:, None], key, place, sampled=sampled)[:, 0]
        child = tree.valid & (tree.parent == walk.node[:, None]) & (tree.token == token[:, None]) & (index > 0)
        found = child.any(1) & walk.going
        node = jnp.where(found, jnp.argmax(child, axis=1).astype(jnp.int32), walk.node)
        return _Walk(
            depth=walk.depth + 1,
            node=node,
            going=found,
            # Past the last level is dropped.
            path=walk.path.at[:, walk.depth + 1].set(jnp.where(found, node, 0), mode="drop"),
            chosen=walk.chosen.at[:, walk.depth].set(jnp.where(walk.going, token, 0)),
        )

    everyone = jnp.ones_like(token_length, bool)
    begin = _Walk(depth=jnp.int32(0), node=jnp.zeros_like(token_length), going=everyone, path=zeros, chosen=zeros)
    if tree.token.shape[1] == 1:
        walk = ask(begin)
    else:
        walk = jax.lax.while_loop(lambda walk: walk.going.any() & (walk.depth <= tree.levels), ask, begin)
    return Accepted(path=walk.path, count=1 + (walk.path > 0).sum(1, dtype=jnp.int32)), walk.chosen
