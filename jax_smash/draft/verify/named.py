"""The ways to check drafted tokens, by name."""

import abc
import dataclasses
import functools

import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from jax_smash.draft.trees.tree import DraftTree, at_nodes
from jax_smash.draft.verify.accept import Accepted
from jax_smash.draft.verify.k_seq import KSeq
from jax_smash.draft.verify.rejection import reject
from jax_smash.draft.verify.rules import Independent, Rule, WithoutReplacement
from jax_smash.draft.verify.typical import accept_typical_lossy
from jax_smash.draft.verify.walk import NodeLogits, walk_down


class Verification(abc.ABC):
    """How drafted tokens are checked where rows sample. Stateless and hashable: it is compiled in.

    Greedy rows get their likeliest tokens by all of them.
    """

    def check(
        self,
        tree: DraftTree,
        logits: NodeLogits,
        key: Key[Array, "B"],
        token_length: Int[Array, "B"],
        *,
        sampled: bool,
    ) -> tuple[Accepted, Int[Array, "B P"]]:
        """Returns the path that is kept, and the token that is emitted behind each of its nodes.

        Args:
          tree: the drafted nodes.
          logits: of the target, processed.
          key: of each row.
          token_length: tokens of each row's sequence, the root's included.
          sampled: some row samples.
        """
        check = self._check_samples if sampled else functools.partial(walk_down, sampled=False)
        return check(tree, logits, key, token_length)

    @abc.abstractmethod
    def _check_samples(
        self, tree: DraftTree, logits: NodeLogits, key: Key[Array, "B"], token_length: Int[Array, "B"]
    ) -> tuple[Accepted, Int[Array, "B P"]]:
        """Does what `check` says where some row samples."""


@dataclasses.dataclass(frozen=True)
class Coupling(Verification):
    """Keeps what plain decoding would have emitted: the text is the same, token for token, whatever was drafted."""

    def _check_samples(
        self, tree: DraftTree, logits: NodeLogits, key: Key[Array, "B"], token_length: Int[Array, "B"]
    ) -> tuple[Accepted, Int[Array, "B P"]]:
        """Compares each node with the target's choice at its parent, made with the noise of plain decoding."""
        return walk_down(tree, logits, key, token_length, sampled=True)


@dataclasses.dataclass(frozen=True)
class Rejection(Verification):
    """Keeps drawn tokens so that the text follows the target's distribution: lossless, but not plain decoding's text.

    Attributes:
      rule: how siblings were drawn and are tried.
    """

    rule: Rule

    def _check_samples(
        self, tree: DraftTree, logits: NodeLogits, key: Key[Array, "B"], token_length: Int[Array, "B"]
    ) -> tuple[Accepted, Int[Array, "B P"]]:
        """Accepts and refuses drawn tokens by the rule; a tree without their distribution is an error."""
        if tree.token.shape[1] == 1:  # Nothing was drafted.
            return walk_down(tree, logits, key, token_length, sampled=True)
        accepted, last = reject(tree, logits, key, token_length, rule=self.rule)
        return accepted, _behind(tree, accepted, last)


@dataclasses.dataclass(frozen=True)
class TypicalLossy(Verification):
    """Keeps what the target finds likely enough. LOSSY: sampled text does not follow the target's distribution."""

    def _check_samples(
        self, tree: DraftTree, logits: NodeLogits, key: Key[Array, "B"], token_length: Int[Array, "B"]
    ) -> tuple[Accepted, Int[Array, "B P"]]:
        """Compares each node's probability with a threshold that falls with the entropy."""
        accepted, last = accept_typical_lossy(tree, logits.everywhere())
        return accepted, _behind(tree, accepted, last)


def _behind(tree: DraftTree, accepted: Accepted, last: Int[Array, "B"]) -> Int[Array, "B P"]:
    """Returns the token behind each node of the path: the next one's, and `last` at its end."""
    place = jnp.arange(accepted.path.shape[1], dtype=jnp.int32)[None]
    follower = jnp.pad(accepted.path[:, 1:], ((0, 0), (0, 1)))
    return jnp.where(place + 1 < accepted.count[:, None], at_nodes(tree.token, follower), last[:, None])


COUPLING = Coupling()

VERIFICATIONS: dict[str, Verification] = {
    "coupling": COUPLING,
    "rejection": Rejection(WithoutReplacement()),
    "rejection-independent": Rejection(Independent()),
    "k-seq": Rejection(KSeq()),
    "typical-lossy": TypicalLossy(),
}
"""Verifications by name. On a chain, `rejection` is classic speculative sampling."""
