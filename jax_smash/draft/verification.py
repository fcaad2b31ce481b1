"""The ways to check drafted tokens, by name."""

import abc
import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jax_smash.draft.k_seq import KSeq
from jax_smash.draft.rejection import reject
from jax_smash.draft.rules import Independent, Rule, WithoutReplacement
from jax_smash.draft.tree import DraftTree, at_nodes
from jax_smash.draft.typical import accept_typical_lossy
from jax_smash.draft.verify import Accepted, accept
from jax_smash.sampling import choose, highest


class Verification(abc.ABC):
    """How drafted tokens are checked where rows sample. Stateless and hashable: it is compiled in.

    Greedy rows get their likeliest tokens by all of them.
    """

    def check(
        self,
        tree: DraftTree,
        logits: Float[Array, "B M V"],
        key: Key[Array, "B"],
        token_length: Int[Array, "B"],
        *,
        sampled: bool,
    ) -> tuple[Accepted, Int[Array, "B M"]]:
        """Returns the path that is kept, and the token that is emitted behind each of its nodes.

        Args:
          tree: the drafted nodes.
          logits: of the target at each node, processed.
          key: of each row.
          token_length: tokens of each row's sequence, the root's included.
          sampled: some row samples.

        Returns:
          The path; and a token a node, behind nodes off the path one that the target might have chosen there.
        """
        if sampled:
            return self._check_samples(tree, logits, key, token_length)
        target = highest(logits)
        return accept(tree, target), target

    @abc.abstractmethod
    def _check_samples(
        self, tree: DraftTree, logits: Float[Array, "B M V"], key: Key[Array, "B"], token_length: Int[Array, "B"]
    ) -> tuple[Accepted, Int[Array, "B M"]]:
        """Does what `check` says where some row samples."""


@dataclasses.dataclass(frozen=True)
class Coupling(Verification):
    """Keeps what plain decoding would have emitted: the text is the same, token for token, whatever was drafted."""

    def _check_samples(
        self, tree: DraftTree, logits: Float[Array, "B M V"], key: Key[Array, "B"], token_length: Int[Array, "B"]
    ) -> tuple[Accepted, Int[Array, "B M"]]:
        """Compares each node with the target's choice at its parent, made with the noise of plain decoding."""
        # A node's noise is that of the place behind it, so nodes of one depth share it.
        depth = jnp.arange(tree.levels + 1, dtype=jnp.int32)[None]
        target = choose(logits, key, token_length[:, None] + depth, sampled=True, place=tree.depth)
        return accept(tree, target), target


@dataclasses.dataclass(frozen=True)
class Rejection(Verification):
    """Keeps drawn tokens so that the text follows the target's distribution: lossless, but not plain decoding's text.

    Attributes:
      rule: how siblings were drawn and are tried.
    """

    rule: Rule

    def _check_samples(
        self, tree: DraftTree, logits: Float[Array, "B M V"], key: Key[Array, "B"], token_length: Int[Array, "B"]
    ) -> tuple[Accepted, Int[Array, "B M"]]:
        """Accepts and refuses drawn tokens by the rule; a tree without their distribution is an error."""
        accepted, last = reject(tree, logits, key, token_length, rule=self.rule)
        return accepted, _behind(tree, logits, accepted, last)


@dataclasses.dataclass(frozen=True)
class TypicalLossy(Verification):
    """Keeps what the target finds likely enough. LOSSY: sampled text does not follow the target's distribution."""

    def _check_samples(
        self, tree: DraftTree, logits: Float[Array, "B M V"], key: Key[Array, "B"], token_length: Int[Array, "B"]
    ) -> tuple[Accepted, Int[Array, "B M"]]:
        """Compares each node's probability with a threshold that falls with the entropy."""
        accepted, last = accept_typical_lossy(tree, logits)
        return accepted, _behind(tree, logits, accepted, last)


def _behind(
    tree: DraftTree, logits: Float[Array, "B M V"], accepted: Accepted, last: Int[Array, "B"]
) -> Int[Array, "B M"]:
    """Returns the token behind each node: the next one's on the path, `last` at its end, the likeliest elsewhere."""
    path, count = accepted.path, accepted.count[:, None]
    place = jnp.arange(path.shape[1], dtype=jnp.int32)[None]
    follower = jnp.concatenate([path[:, 1:], jnp.zeros_like(path[:, :1])], axis=1)
    token = jnp.where(place + 1 < count, at_nodes(tree.token, follower), last[:, None])
    target = highest(logits)
    row = jnp.arange(path.shape[0], dtype=jnp.int32)[:, None]
    return target.at[row, jnp.where(place < count, path, target.shape[1])].set(token, mode="drop")


COUPLING = Coupling()

VERIFICATIONS: dict[str, Verification] = {
    "coupling": COUPLING,
    "rejection": Rejection(WithoutReplacement()),
    "rejection-independent": Rejection(Independent()),
    "k-seq": Rejection(KSeq()),
    "typical-lossy": TypicalLossy(),
}
"""Verifications by name. On a chain, `rejection` is classic speculative sampling."""
