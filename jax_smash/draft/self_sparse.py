"""The target drafts for itself: it reads a part of its own cache, and checks by the whole."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from jax_smash.draft.context import Context, Outcome, Seen
from jax_smash.draft.draft_model import DraftModel, Past
from jax_smash.draft.trees.tree import DraftTree, Topology, grow
from jax_smash.protocols import Forward, Needs, Params
from jax_smash.pytree import replace


@dataclasses.dataclass(frozen=True)
class SelfSparse(DraftModel):
    """Drafts with the target's own cache, of which a policy chooses the slots that are read.

    There is one set of keys and values, those of the target's checks. So nothing is read twice, nothing is kept beside
    the target's cache, and drafts after a step begin from what is exact. The drafted nodes' own keys and values last
    for a step.

    Source: Sun et al. 2024, "TriForce: Lossless Acceleration of Long Sequence Generation with Hierarchical Speculative
    Decoding", section 4 (a model with retrieved parts of its cache drafts for itself with the whole).
    Differs: slots are chosen anew for each draft, by the pending token; any policy may choose them; one level of
    drafting, not two.
    """

    @property
    def needs(self) -> Needs:
        """The target's cache."""
        return Needs(cache=True)

    def init(self, params: Params, batch: int, slots: int, block: int) -> Any:
        """Keeps nothing of a row."""
        return ()

    def read(self, params: Params, own: Any, shared: Any, seen: Seen) -> tuple[Any, Any]:
        """Learns nothing that is not in the target's cache."""
        return own, shared

    def propose(
        self, params: Params, own: Any, shared: Any, context: Context, topology: Topology
    ) -> tuple[DraftTree, None]:
        """Returns the tree that the pending token is continued with, level by level."""
        if not topology.levels:
            return grow(topology, context.pending[:, None]), None
        nothing = jnp.zeros((len(context.pending), 0), jnp.int32)
        past = Past(cache=context.cache, token=nothing, there=nothing > 0)
        tree, _ = self.drafted(params, past, context, topology)
        return tree, None

    def _behind_root(self, past: Past, out: Forward) -> Past:
        """Has the levels behind the root read the slots that the root has chosen, where it did not read all of them."""
        return past if out.policy_state is None else replace(past, cache=out.policy_state)

    def learn(self, params: Params, own: Any, shared: Any, made: Any, outcome: Outcome) -> tuple[Any, Any]:
        """Learns nothing."""
        return own, shared

    def follow(
        self,
        params: Params,
        own: Any,
        shared: Any,
        seen: Seen,
        pending: Int[Array, "B"],
    ) -> tuple[Any, Any]:
        """Learns nothing: what was read without a draft is in the target's cache too."""
        return own, shared
