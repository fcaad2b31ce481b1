"""Prompt lookup: what followed the last words where they stood before."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from jax_smash.draft.context import Context, Outcome, Seen
from jax_smash.draft.text import Text
from jax_smash.draft.trees.continuations import tree_of_continuations
from jax_smash.draft.trees.tree import DraftTree, Topology
from jax_smash.protocols import Needs, Params

MOST_PLACES = 30
"""Places whose weights, each twice the next, fit 32 bits together."""


@dataclasses.dataclass(frozen=True)
class Lookup:
    """Drafts what followed where the text so far, prompt and output, has the same last tokens.

    The place where most of the last `max_ngram` tokens agree comes first, of equal ones the latest. A chain is what
    followed there. In a tree, each further child is what followed at the next best place where another token stands.

    Source: Saxena 2023, "Prompt Lookup Decoding".
    Differs: several places make a tree; the latest place comes first; and where the text ends, a continuation goes on
    as if the text repeated.

    Attributes:
      max_ngram: last tokens that are compared at most.
      places: that are looked at for a tree; at most 30.
      least: tokens that are likely to be kept with a lower probability are not drafted; see `tree_of_continuations`.
        Then the best place alone counts.

    Raises:
      ValueError: a number is out of range.
    """

    max_ngram: int = 3
    places: int = 8
    least: float = 0.0

    def __post_init__(self) -> None:
        if self.max_ngram < 1:
            raise ValueError(f"max_ngram must be at least 1; got {self.max_ngram}")
        if not 1 <= self.places <= MOST_PLACES:
            raise ValueError(f"places must be from 1 to {MOST_PLACES}; got {self.places}")

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
        self, params: Params, own: Text, shared: Any, context: Context, topology: Topology
    ) -> tuple[DraftTree, None]:
        """Returns the tree of what followed the last tokens before."""
        pending = context.pending
        text = own.extended(pending[:, None], jnp.ones_like(pending))
        place, agreeing = text.latest(text.matches(self.max_ngram), 1 if self.least else self.places)
        # A place outweighs all that come after it together.
        weight = jnp.left_shift(1, jnp.arange(place.shape[1] - 1, -1, -1, dtype=jnp.int32))[None]
        weight = jnp.where(agreeing > 0, weight, 0)
        token = text.following(place, topology.levels)
        tree = tree_of_continuations(topology, pending, token, weight, agreeing=agreeing[:, 0], least=self.least)
        return tree, None

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
