"""Prompt lookup: what followed the last words where they stood before."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from jax_smash.draft.continuations import tree_of_continuations
from jax_smash.draft.text import Text, kept_tokens, with_rows
from jax_smash.draft.tree import DraftTree, Topology
from jax_smash.protocols import Params

MOST_PLACES = 30
"""Places whose weights, each twice the next, fit 32 bits together."""


@dataclasses.dataclass(frozen=True)
class Lookup:
    """Drafts what followed where the text so far, prompt and output, has the same last tokens.

    The place where most of the last `max_ngram` tokens agree comes first, of equal ones the latest. A chain continues
    it; in a tree, a further child is what followed at the next best place that says otherwise.

    Source: Saxena 2023, "Prompt Lookup Decoding".
    Differs: several places make a tree; the latest place comes first; and where the text ends, a continuation goes on
    as if the text repeated.

    Attributes:
      max_ngram: last tokens that are compared at most.
      places: that are looked at for a tree; at most 30.

    Raises:
      ValueError: a number is out of range.
    """

    max_ngram: int = 3
    places: int = 8

    def __post_init__(self) -> None:
        if self.max_ngram < 1:
            raise ValueError(f"max_ngram must be at least 1; got {self.max_ngram}")
        if not 1 <= self.places <= MOST_PLACES:
            raise ValueError(f"places must be from 1 to {MOST_PLACES}; got {self.places}")

    def init(self, params: Params, batch: int, slots: int) -> Text:
        """Makes rows that have read nothing."""
        return Text.empty(batch, slots)

    def prefill(self, params: Params, state: Any, chunk: Any, hidden: Any, taps: Any) -> Any:
        """Keeps the prompt's tokens."""
        count = chunk.valid.sum(1, dtype=jnp.int32)
        return with_rows(state, state.rows.draft.drafter.extended(chunk.tokens, count))

    def propose(self, params: Params, state: Any, topology: Topology) -> tuple[DraftTree, Any]:
        """Returns the tree of what followed the last tokens before."""
        pending = state.rows.pending
        text = state.rows.draft.drafter.extended(pending[:, None], jnp.ones_like(pending))
        place, agreeing = text.latest(text.matches(self.max_ngram), self.places)
        # A place outweighs all that come after it together.
        weight = jnp.left_shift(1, jnp.arange(place.shape[1] - 1, -1, -1, dtype=jnp.int32))[None]
        weight = jnp.where(agreeing > 0, weight, 0)
        return tree_of_continuations(topology, pending, text.following(place, topology.levels), weight), None

    def lesson(self, params: Params, state: Any, checked: Any) -> None:
        """Needs nothing but the tokens."""

    def observe(self, params: Params, state: Any, verified: Any) -> Any:
        """Keeps what was committed."""
        return with_rows(state, state.rows.draft.drafter.extended(kept_tokens(verified), verified.count))

    def follow(self, params: Params, state: Any, token: Int[Array, "B P"], count: Int[Array, "B"]) -> Any:
        """Keeps what was read."""
        return with_rows(state, state.rows.draft.drafter.extended(token, count))
