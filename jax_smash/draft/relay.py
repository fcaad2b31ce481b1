"""Two drafters that stop: the second drafts where the first has nothing to say."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool

from jax_smash.draft.context import Context
from jax_smash.draft.pair import DrafterPair, Pair
from jax_smash.draft.trees.tree import DraftTree, Topology, chain, tree_of
from jax_smash.protocols import LateLearner, Params
from jax_smash.pytree import replace


@dataclasses.dataclass(frozen=True)
class Relay(DrafterPair):
    """Drafts a chain by one drafter, and a tree by another for the rows whose chain would be empty.

    Source: Hu et al. 2024, "SAM Decoding: Speculative Decoding via Suffix Automaton", where another drafter takes over
    from a suffix automaton.
    Differs: it takes over where no token is likely enough to be kept; theirs, where fewer tokens agree than a bound.

    Attributes:
      first: drafts chains, and stops where it is unsure.
      second: drafts trees, and likewise. It may skip what only rows that have ended would need, and is told that those
        with a chain have.
    """

    first: LateLearner
    second: LateLearner

    varies = True
    """Trees may have fewer valid nodes than are asked for."""

    @property
    def branches(self) -> bool:
        """Drafts may branch, whatever the topology."""
        return getattr(self.second, "branches", False)

    @property
    def parts(self) -> tuple[LateLearner, LateLearner]:
        """Both drafters."""
        return self.first, self.second

    def propose(
        self, params: Params, own: Pair, shared: Pair, context: Context, topology: Topology
    ) -> tuple[DraftTree, Pair]:
        """Returns each row's chain or tree."""
        longest = chain(topology.levels) if topology.levels else topology
        line, known = self.first.propose(params, own[0], shared[0], context, longest)
        there = line.valid[:, 1:].any(1)
        others = replace(context, running=context.running & ~there)
        tree, made = self.second.propose(params, own[1], shared[1], others, topology)
        return _either(there, line, tree), (known, made)


def _either(there: Bool[Array, "B"], line: DraftTree, tree: DraftTree) -> DraftTree:
    """Returns a chain for the rows that have one, and for others their tree, of at least as many nodes."""
    room = tree.token.shape[1] - line.token.shape[1]

    def each(of_line: Array, of_tree: Array) -> Array:
        return jnp.where(there[:, None], jnp.pad(of_line, ((0, 0), (0, room))), of_tree)

    found = tree_of(
        each(line.token, tree.token), each(line.parent, tree.parent), each(line.valid, tree.valid), levels=tree.levels
    )
    if line.rank is None or tree.rank is None:
        return found
    # Where nothing is proposed there is no trial of any rank.
    return replace(found, rank=jnp.where(found.valid, each(line.rank, tree.rank), -1))
