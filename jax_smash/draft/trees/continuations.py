"""Continuations that were found somewhere, merged into one tree."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.draft.text import NOTHING
from jax_smash.draft.trees.best_first import FIRST
from jax_smash.draft.trees.tree import DraftTree, Topology, along_paths, grow


def tree_of_continuations(
    topology: Topology,
    pending: Int[Array, "B"],
    token: Int[Array, "B R levels"],
    weight: Int[Array, "B R"],
    *,
    agreeing: Int[Array, "B"] | None = None,
    least: float = 0.0,
) -> DraftTree:
    """Returns the tree in which each node stands for all continuations that begin with its path.

    A parent's children are ranked by the weight of what they stand for, of equal ones by which continuation comes
    first. Where a topology has a rank that no child has, nothing is proposed.

    With `least`, neither are nodes of a lower probability, nor is anything where no child of the root has three times
    as much. A node d tokens below the root, in a text that agrees with the places of its continuations in k tokens, is
    taken to be kept with the probability

        weight of what it stands for / weight of all · (1 − 2^−k) · (1 − 2^−(k+1)) · … · (1 − 2^−(k+d−1))

    Args:
      topology: which nodes the tree has.
      pending: the token of the root.
      token: of each continuation, level by level; what follows a `NOTHING` does not count.
      weight: of each continuation; the sum must fit an int32. One with weight 0 does not count.
      agreeing: k; needed with `least`.
      least: a probability; 0 proposes all that there is.
    """
    if not topology.levels:
        return grow(topology, pending[:, None])
    token = jnp.where(weight[:, :, None] > 0, token, NOTHING)
    ranks, mass, read = _ranks(token, weight)
    one = (topology.ancestors[None], topology.depth[None], topology.rank[None])
    wanted = along_paths(*one, levels=topology.levels)[0]
    # A node is the first continuation whose ranks are those that lead from the root to it.
    agrees = (wanted[None, :, None] == ranks[:, None]) | (wanted[None, :, None] < 0)
    level = jnp.maximum(topology.depth - 1, 0)
    there = agrees.all(-1) & jnp.take(read, level, axis=2).swapaxes(1, 2)
    first = jnp.argmax(there, axis=2).astype(jnp.int32)
    index = first * topology.levels + level[None]
    found = jnp.take_along_axis(token.reshape(token.shape[0], -1), index, axis=1)
    found = jnp.where(there.any(2), found, NOTHING)
    if least:
        assert agreeing is not None
        kept = _kept(mass, weight, agreeing)
        probability = jnp.take_along_axis(kept.reshape(kept.shape[0], -1), index, axis=1)
        best = jnp.where((topology.depth == 1)[None] & (found >= 0), probability, 0.0).max(1, keepdims=True)
        found = jnp.where((probability >= least) & (best >= FIRST * least), found, NOTHING)
    return grow(topology, found.at[:, 0].set(pending))


def _kept(
    mass: Int[Array, "B R levels"], weight: Int[Array, "B R"], agreeing: Int[Array, "B"]
) -> Float[Array, "B R levels"]:
    """Returns the probability of each continuation's node at every level."""
    all_of_it = jnp.maximum(weight.sum(1, dtype=jnp.int32), 1).astype(jnp.float32)
    read = agreeing[:, None] + jnp.arange(mass.shape[2], dtype=jnp.int32)[None]
    right = jnp.cumprod(1 - jnp.exp2(-read.astype(jnp.float32)), axis=1)
    return mass.astype(jnp.float32) / all_of_it[:, None, None] * right[:, None]


def _ranks(
    token: Int[Array, "B R levels"], weight: Int[Array, "B R"]
) -> tuple[Int[Array, "B R levels"], Int[Array, "B R levels"], Bool[Array, "B R levels"]]:
    """Returns each continuation's rank among its siblings at every level, the weight of what its node there stands for,
    and whether it reaches that far.
    """
    count = token.shape[1]
    order = jnp.arange(count, dtype=jnp.int32)[None]

    def level(share: Bool[Array, "B R R"], here: Int[Array, "B R"]) -> tuple[Array, tuple[Array, Array]]:
        siblings = share
        share = share & (here[:, :, None] == here[:, None]) & (here >= 0)[:, :, None]
        # Of those that share a path, the first stands for all.
        first = jnp.where(share, order[:, None], count).min(-1)
        mass = jnp.where(share, weight[:, None], 0).sum(-1, dtype=jnp.int32)
        heavier = mass[:, None] > mass[:, :, None]
        earlier = (mass[:, None] == mass[:, :, None]) & (first[:, None] < first[:, :, None])
        ahead = siblings & (first == order)[:, None] & (heavier | earlier)
        return share, (ahead.sum(-1, dtype=jnp.int32), mass)

    _, (ranks, masses) = jax.lax.scan(level, jnp.ones((token.shape[0], count, count), bool), jnp.moveaxis(token, 2, 0))
    by_level = jnp.moveaxis(ranks, 0, 2), jnp.moveaxis(masses, 0, 2)
    return *by_level, jnp.cumprod(token >= 0, axis=2).astype(bool)
