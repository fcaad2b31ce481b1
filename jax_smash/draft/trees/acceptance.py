"""Acceptance by depth and rank, learned while decoding, and the trees that it calls for; all of it on the device."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jax_smash.draft.trees.sizing import places
from jax_smash.draft.trees.tree import DraftTree, Topology, at_nodes, pack, unpack
from jax_smash.draft.verify.accept import Accepted
from jax_smash.pytree import pytree, replace, static

PRIOR_FIRST, PRIOR_FALL = 0.4, 0.4
"""Rates before anything was seen: of a node's first child, and of each next rank over the one before."""

PRIOR_TRIALS = 8.0
"""Trials that the first rates count as."""

MEMORY = 512.0
"""Trials after which a trial counts 1/e."""

RECENT = 64.0
"""The same, where recent trials are compared with what is known."""

SURPRISE = 4.0
"""Standard deviations between recent trials and what is known, over which a text has changed."""

AFTER_SURPRISE = 8.0
"""Trials that what is known then counts as."""


@pytree
class Acceptance:
    """How often the child of each rank of a kept node was kept, what is long ago counting less.

    Where a text changes, nearly all is forgotten: a depth whose recent trials say something else than all of them.

    Attributes:
      hits: children kept, by the depth of their parent and by rank.
      trials: children proposed below a kept node.
      excess: of recent trials at each depth, how many more kept a child than was expected of them.
      variance: of `excess`, if what is known is right.
      memory: trials of one child after which a trial counts 1/e.
    """

    hits: Float[Array, "levels ranks"]
    trials: Float[Array, "levels ranks"]
    excess: Float[Array, "levels"]
    variance: Float[Array, "levels"]
    memory: float = static()

    def rates(self) -> Float[Array, "levels ranks"]:
        """Returns the probability that a child is kept whose parent is."""
        return self.hits / self.trials

    def update(self, hit: Int[Array, "B levels"], tried: Bool[Array, "B levels ranks"]) -> "Acceptance":
        """Returns what is known after a step.

        Args:
          hit: rank of the child that was kept below the kept node of each depth; negative for none.
          tried: ranks that were proposed there; False below what was not kept, and for rows that do not run.
        """
        rank = jnp.arange(self.hits.shape[1], dtype=jnp.int32)[None, None]
        hits = ((hit[:, :, None] == rank) & tried).sum(0).astype(jnp.float32)
        trials = tried.sum(0).astype(jnp.float32)
        excess, variance = self._surprise(hit, tried)
        changed = excess**2 > SURPRISE**2 * (variance + 1)
        # What is not tried is not forgotten.
        kept = jnp.exp(-trials / self.memory)
        kept = jnp.where(changed[:, None], jnp.minimum(kept, AFTER_SURPRISE / self.trials), kept)
        return replace(
            self,
            hits=self.hits * kept + hits,
            trials=self.trials * kept + trials,
            excess=jnp.where(changed, 0.0, excess),
            variance=jnp.where(changed, 0.0, variance),
        )

    def _surprise(
        self, hit: Int[Array, "B levels"], tried: Bool[Array, "B levels ranks"]
    ) -> tuple[Float[Array, "levels"], Float[Array, "levels"]]:
        """Returns `excess` and `variance` after a step."""
        expected = jnp.minimum(jnp.where(tried, self.rates()[None], 0.0).sum(-1), 1.0)
        asked = tried.any(-1).astype(jnp.float32)
        surplus = (asked * ((hit >= 0).astype(jnp.float32) - expected)).sum(0)
        kept = jnp.exp(-asked.sum(0) / RECENT)
        spread = (expected * (1.0 - expected)).sum(0)
        return self.excess * kept + surplus, self.variance * kept**2 + spread


def prior_rates(
    levels: int, ranks: int, *, first: float = PRIOR_FIRST, deeper: float | None = None, fall: float = PRIOR_FALL
) -> Float[np.ndarray, "levels ranks"]:
    """Returns rates to begin with: a guess, soon outweighed.

    Args:
      levels, ranks: of the drafter's trees.
      first: of the first child of the root.
      deeper: of a deeper node's first child; None for the same at every depth.
      fall: of each next rank over the one before.
    """
    rates = np.full((levels, 1), first if deeper is None else deeper, np.float32)
    rates[:1] = first
    return (rates * fall ** np.arange(ranks, dtype=np.float32)[None]).astype(np.float32)


def acceptance(rates: Float[np.ndarray, "levels ranks"], *, memory: float = MEMORY) -> Acceptance:
    """Makes what is known before anything was seen.

    Args:
      rates: to begin with, as if `PRIOR_TRIALS` trials had shown them.
      memory: trials of one child after which a trial counts 1/e.

    Raises:
      ValueError: a rate is no probability, or the memory is not positive.
    """
    if not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError(f"rates must be from 0 to 1; got {rates.min()} to {rates.max()}")
    if not memory > 0:
        raise ValueError(f"memory must be over 0; got {memory}")
    trials = jnp.full(rates.shape, PRIOR_TRIALS, jnp.float32)
    none = jnp.zeros(rates.shape[:1], jnp.float32)
    return Acceptance(
        hits=jnp.asarray(rates, jnp.float32) * trials, trials=trials, excess=none, variance=none, memory=memory
    )


def observe(
    known: Acceptance, tree: DraftTree, accepted: Accepted, rank: Int[Array, "B M"], running: Bool[Array, "B"]
) -> Acceptance:
    """Returns what is known after a tree was verified.

    Args:
      known: before.
      tree: what was proposed.
      accepted: the path that was kept.
      rank: of each node; a negative one is no trial. A place that the drafter left empty is a trial that failed.
      running: rows that had not ended.
    """
    levels, ranks = known.hits.shape
    depth = jnp.arange(levels, dtype=jnp.int32)[None]
    room = max(0, levels + 1 - accepted.path.shape[1])
    path = jnp.pad(accepted.path, ((0, 0), (0, room)))
    reached = (depth < accepted.count[:, None]) & running[:, None]
    kept = (depth + 1 < accepted.count[:, None]) & reached
    hit = jnp.where(kept, at_nodes(rank, path[:, 1 : levels + 1]), -1)
    below = (tree.parent[:, None] == path[:, :levels, None]) & reached[:, :, None]
    below &= (jnp.arange(tree.parent.shape[1], dtype=jnp.int32) > 0)[None, None]
    of_rank = rank[:, None, :, None] == jnp.arange(ranks, dtype=jnp.int32)[None, None, None]
    return known.update(hit, (below[..., None] & of_rank).any(2))


def sibling_ranks(tree: DraftTree) -> Int[Array, "B M"]:
    """Returns how many valid siblings stand before each node; −1 at the root and where a node is not valid."""
    node = jnp.arange(tree.parent.shape[1], dtype=jnp.int32)
    drafted = tree.valid & (node > 0)[None]
    before = (node[None] < node[:, None])[None] & drafted[:, None]
    rank = (before & (tree.parent[:, :, None] == tree.parent[:, None])).sum(-1, dtype=jnp.int32)
    return jnp.where(drafted, rank, -1)


def expected_tokens(rates: Float[Array, "levels ranks"], tree: Topology) -> Float[Array, ""]:
    """Returns how many tokens a step emits with this tree, as `sizing.expected_tokens` does."""
    # The root's own rate is 1; a depth or rank that the rates do not tell is never kept.
    depth = jnp.where(tree.depth > 0, tree.depth - 1, rates.shape[0])
    own = rates.at[depth, tree.rank].get(mode="fill", fill_value=0.0)
    own = jnp.where(tree.depth > 0, own, 1.0)
    on_path = unpack(tree.ancestors, tree.nodes)
    return jnp.where(on_path, own[None], 1.0).prod(1).sum()


def likeliest_tree(rates: Float[Array, "levels ranks"], *, nodes: int, levels: int | None = None) -> Topology:
    """Returns the tree of this many nodes that emits most tokens a step: `sizing.best_tree` of traced rates.

    Nodes stand in the order of their probability, the likeliest first.

    Args:
      rates: of the drafter, as many levels as the tree may have.
      nodes: M, the root included.
      levels: room that the tree is given, at least the rates' levels; by default those.

    Raises:
      ValueError: there are fewer places, or fewer levels, than asked for.
    """
    deepest, ranks = rates.shape
    levels = deepest if levels is None else levels
    if not 1 <= nodes <= places(deepest, ranks) + 1:
        raise ValueError(f"nodes must be from 1 to {places(deepest, ranks) + 1}; got {nodes}")
    if levels < deepest:
        raise ValueError(f"levels must be at least {deepest}, those of the rates; got {levels}")
    order = jnp.argsort(-rates, axis=1).astype(jnp.int32)
    # A row and a column more, so that a node without a next child looks one up that is never chosen.
    falling = jnp.pad(jnp.take_along_axis(rates, order, axis=1), ((0, 1), (0, 1)), constant_values=-1.0)
    zeros = jnp.zeros((nodes,), jnp.int32)
    node = jnp.arange(nodes, dtype=jnp.int32)

    def add(i: Int[Array, ""], carry: tuple[Array, ...]) -> tuple[Array, ...]:
        parent, depth, rank, kept, children, reached = carry
        # Of each node the probability of its likeliest child that is not in the tree yet.
        following = jnp.where(node < i, kept * falling[depth, children], -1.0)
        following = jnp.where((depth < deepest) & (children < ranks), following, -1.0)
        above = jnp.argmax(following).astype(jnp.int32)
        return (
            parent.at[i].set(above),
            depth.at[i].set(depth[above] + 1),
            rank.at[i].set(order[depth[above], children[above]]),
            kept.at[i].set(following[above]),
            children.at[above].add(1),
            reached.at[i].set(reached[above] | (node == i)),
        )

    kept = jnp.ones((nodes,), jnp.float32)
    carry = (zeros, zeros, zeros, kept, zeros, jnp.eye(nodes, dtype=bool))
    parent, depth, rank, _, _, reached = jax.lax.fori_loop(jnp.int32(1), jnp.int32(nodes), add, carry)
    return Topology(parent=parent, depth=depth, rank=rank, ancestors=pack(reached), levels=levels)
