"""Lookup in a corpus: what follows the last words in a user's texts."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jax_smash.draft.context import Context, Outcome, Seen
from jax_smash.draft.suffix import weights
from jax_smash.draft.text import BEFORE, NOTHING, Text
from jax_smash.draft.trees.continuations import tree_of_continuations
from jax_smash.draft.trees.tree import DraftTree, Topology
from jax_smash.protocols import Needs, Params
from jax_smash.pytree import pytree

LENGTH = 16
"""Tokens that two endings are compared by, at most."""


@pytree
class CorpusIndex:
    """Texts, and the order of their places by what stands before them.

    Below, K is `LENGTH`.

    Attributes:
      token: of all texts one after the other, `NOTHING` behind each.
      order: places sorted by the tokens up to and with each, read backwards, as far as K tokens.
    """

    token: Int[Array, "n"]
    order: Int[Array, "n"]

    def back_from(self, place: Int[Array, "*batch"]) -> Int[Array, "*batch K"]:
        """Returns the tokens up to and with each place, read backwards; `BEFORE` before the first."""
        index = place[..., None] - jnp.arange(LENGTH, dtype=jnp.int32).reshape((1,) * place.ndim + (LENGTH,))
        return jnp.where(index >= 0, self.token[jnp.maximum(index, 0)], BEFORE)

    def insertion(self, ending: Int[Array, "B K"]) -> Int[Array, "B"]:
        """Returns how many places have an ending that sorts before this one, by binary search."""
        size = self.order.shape[0]

        def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds
            middle = (low + high) // 2
            there = self.back_from(self.order[jnp.minimum(middle, size - 1)])
            differs = (there != ending).at[:, -1].set(True)
            first = jnp.argmax(differs, axis=1)[:, None]
            smaller = jnp.take_along_axis(there, first, axis=1) < jnp.take_along_axis(ending, first, axis=1)
            smaller = smaller[:, 0] & (low < high)
            return jnp.where(smaller, middle + 1, low), jnp.where(smaller, high, middle)

        zeros = jnp.zeros((ending.shape[0],), jnp.int32)
        return jax.lax.fori_loop(0, size.bit_length(), halve, (zeros, jnp.full_like(zeros, size)))[0]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Drafts what follows the longest ending of the text so far that stands in a corpus.

    The places whose endings agree most stand side by side in the index's order, so one search finds them. They weigh
    and merge as in `Suffix`: frequent continuations win among equally long matches.

    Source: He et al. 2023, "REST: Retrieval-Based Speculative Decoding".
    Differs: the places are sorted by what stands before them, so that one search finds the longest match where the
    paper tries one length after the other; of many equally good places those nearest in the order count; and the
    tree's shape is the topology's.

    Attributes:
      places: that are looked at, half on each side of where the text's ending would stand; even.
    """

    places: int = 16

    def __post_init__(self) -> None:
        if self.places < 2 or self.places % 2:
            raise ValueError(f"places must be even and at least 2; got {self.places}")

    varies = True
    """Trees may have fewer valid nodes than are asked for."""

    @property
    def needs(self) -> Needs:
        """Nothing but the tokens."""
        return Needs()

    def init(self, params: Params, batch: int, slots: int, block: int) -> Text:
        """Makes rows that have read nothing."""
        return Text.empty(batch, slots)

    def read(self, params: Params, own: Text, shared: Any, seen: Seen) -> tuple[Text, Any]:
        """Keeps the prompt's tokens."""
        return own.extended(seen.token, seen.count), shared

    def propose(
        self, params: Params, own: Text, shared: CorpusIndex, context: Context, topology: Topology
    ) -> tuple[DraftTree, None]:
        """Returns the tree of what follows in the corpus."""
        pending = context.pending
        ending = own.extended(pending[:, None], jnp.ones_like(pending)).ending(LENGTH)
        index = shared
        size = index.order.shape[0]
        side = jnp.arange(-self.places // 2, self.places // 2, dtype=jnp.int32)[None]
        nearest = index.insertion(ending)[:, None] + side
        place = index.order[jnp.clip(nearest, 0, size - 1)]
        same = (index.back_from(place) == ending[:, None]) & (ending >= 0)[:, None]
        agreeing = jnp.cumprod(same.astype(jnp.int32), axis=2).sum(2, dtype=jnp.int32)
        weight = jnp.where((nearest >= 0) & (nearest < size), weights(agreeing), 0)
        after = place[:, :, None] + 1 + jnp.arange(topology.levels, dtype=jnp.int32)[None, None]
        token = jnp.where(after < size, index.token[jnp.minimum(after, size - 1)], NOTHING)
        return tree_of_continuations(topology, pending, token, weight), None

    def learn(self, params: Params, own: Text, shared: Any, made: Any, outcome: Outcome) -> tuple[Text, Any]:
        """Keeps what was committed."""
        return own.extended(outcome.kept_tokens, outcome.count), shared

    def follow(
        self,
        params: Params,
        own: Text,
        shared: Any,
        seen: Seen,
        pending: Int[Array, "B"],
    ) -> tuple[Text, Any]:
        """Keeps what was read meanwhile."""
        return own.extended(seen.token, seen.count), shared


def index_corpus(texts: Sequence[str], tokenizer: Any) -> CorpusIndex:
    """Makes the index of some texts.

    Args:
      texts: that what follows is looked up in.
      tokenizer: the model's.

    Raises:
      ValueError: there is no tokenizer, or the texts have no two tokens that follow each other.
    """
    if tokenizer is None:
        raise ValueError("a corpus needs the model's tokenizer, and the model has none")
    encoded = (tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts)
    tokens = [np.asarray([*text, NOTHING], np.int32) for text in encoded]
    if not any(len(t) > 2 for t in tokens):
        raise ValueError(f"the corpus must have two tokens in a row; its {len(tokens)} texts have none")
    token = np.concatenate(tokens)
    return CorpusIndex(token=jnp.asarray(token), order=jnp.asarray(_order(token)))


def _order(token: np.ndarray) -> np.ndarray:
    """Returns the places sorted by what stands up to and with them, read backwards; by doubling the tokens compared."""
    rank = np.unique(token, return_inverse=True)[1].astype(np.int64) + 1
    compared = 1
    while compared < LENGTH:
        before = np.concatenate([np.zeros(min(compared, len(rank)), np.int64), rank[:-compared]])
        rank = np.unique(rank * (len(rank) + 1) + before, return_inverse=True)[1].astype(np.int64) + 1
        compared *= 2
    return np.argsort(rank, kind="stable").astype(np.int32)
