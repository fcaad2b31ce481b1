"""A suffix index: what followed the longest endings of the text where they stood before."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jax_smash.draft.context import Context, Outcome, Seen
from jax_smash.draft.text import Text
from jax_smash.draft.trees.continuations import tree_of_continuations
from jax_smash.draft.trees.tree import DraftTree, Topology
from jax_smash.protocols import Needs, Params
from jax_smash.pytree import pytree, replace

HEAVIEST = 16
"""Agreeing tokens from which on a place weighs no more."""

PIECE = 16
"""Tokens that are read at once."""


@pytree
class SuffixIndex:
    """The text, and how far each of its endings agrees with the text's own: what a suffix automaton would know.

    Attributes:
      text: what was kept.
      agreeing: of each place, how many tokens up to and with it equal those at the text's end, read backwards; anything
        from the last place on.
    """

    text: Text
    agreeing: Int[Array, "B S"]

    def extended(self, token: Int[Array, "B P"], count: Int[Array, "B"]) -> "SuffixIndex":
        """Returns the index of the text with the first `count` tokens behind it, read `PIECE` at a time."""
        if token.shape[1] <= PIECE:
            return self._with_piece(token, count)
        padded = jnp.pad(token, ((0, 0), (0, -token.shape[1] % PIECE)))

        def read(i: Array, index: SuffixIndex) -> SuffixIndex:
            piece = jax.lax.dynamic_slice_in_dim(padded, i * PIECE, PIECE, axis=1)
            return index._with_piece(piece, jnp.clip(count - i * PIECE, 0, PIECE))

        return jax.lax.fori_loop(jnp.int32(0), (count.max() + PIECE - 1) // PIECE, read, self)

    def _with_piece(self, token: Int[Array, "B P"], count: Int[Array, "B"]) -> "SuffixIndex":
        text = self.text.extended(token, count)
        # Where all the new tokens agree, the tokens before them agree as far as they did.
        new = jnp.minimum(text.matches(token.shape[1]), count[:, None])
        place = jnp.arange(self.agreeing.shape[1], dtype=jnp.int32)[None] - count[:, None]
        old = jnp.take_along_axis(self.agreeing, jnp.maximum(place, 0), axis=1)
        old = jnp.where((new == count[:, None]) & (place >= 0), old, 0)
        return replace(self, text=text, agreeing=new + old)


@dataclasses.dataclass(frozen=True)
class Suffix:
    """Drafts what followed the longest ending of the text so far, prompt and output, where it stood before.

    Of the places where most tokens agree, each weighs twice as much for every further token; a node's children are
    ranked by the weight of the places that they follow, so frequent continuations win among equally long matches.

    Source: Oliaro et al. 2024, "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications"; Hu et al.
    2024, "SAM Decoding: Speculative Decoding via Suffix Automaton".
    Differs: in place of an automaton each place keeps the length of its match, which a new token changes everywhere at
    once; the tree's shape is the topology's; matches of all lengths count, by weight, instead of those of the one
    length that scores best; and where the text ends, a continuation goes on as if the text repeated. SuffixDecoding
    drafts at most a multiple of as many tokens as agree; here `least` bounds how unlikely they may be.

    Attributes:
      places: that are looked at.
      least: tokens that are likely to be kept with a lower probability are not drafted; see `tree_of_continuations`.
    """

    places: int = 16
    least: float = 0.0

    def __post_init__(self) -> None:
        if self.places < 1:
            raise ValueError(f"places must be at least 1; got {self.places}")

    varies = True
    """Trees may have fewer valid nodes than are asked for."""

    @property
    def needs(self) -> Needs:
        """Nothing but the tokens."""
        return Needs()

    def init(self, params: Params, batch: int, slots: int, block: int) -> SuffixIndex:
        """Makes rows that have read nothing."""
        return SuffixIndex(text=Text.empty(batch, slots), agreeing=jnp.zeros((batch, slots), jnp.int32))

    def read(self, params: Params, own: SuffixIndex, shared: Any, seen: Seen) -> tuple[SuffixIndex, Any]:
        """Reads the prompt's tokens."""
        return own.extended(seen.token, seen.count), shared

    def propose(
        self, params: Params, own: SuffixIndex, shared: Any, context: Context, topology: Topology
    ) -> tuple[DraftTree, None]:
        """Returns the tree of what followed the longest endings."""
        text, place, agreeing = self._longest(own, context)
        token, weight = text.following(place, topology.levels), weights(agreeing)
        tree = tree_of_continuations(
            topology, context.pending, token, weight, agreeing=agreeing[:, 0], least=self.least
        )
        return tree, None

    def quarters(self, own: SuffixIndex, context: Context) -> Int[Array, "B"]:
        """Returns a quarter of a budget for each token of the longest ending, up to three."""
        return jnp.minimum(self._longest(own, context)[2][:, 0], 3)

    def learn(
        self, params: Params, own: SuffixIndex, shared: Any, made: Any, outcome: Outcome
    ) -> tuple[SuffixIndex, Any]:
        """Reads what was committed."""
        return own.extended(outcome.kept_tokens, outcome.count), shared

    def follow(
        self,
        params: Params,
        own: SuffixIndex,
        shared: Any,
        seen: Seen,
        pending: Int[Array, "B"],
    ) -> tuple[SuffixIndex, Any]:
        """Reads what was read meanwhile."""
        return own.extended(seen.token, seen.count), shared

    def _longest(self, own: SuffixIndex, context: Context) -> tuple[Text, Int[Array, "B R"], Int[Array, "B R"]]:
        """Returns the text with the pending token, the places of its longest endings, and how long these are."""
        index = own.extended(context.pending[:, None], jnp.ones_like(context.pending))
        return index.text, *index.text.latest(index.agreeing, self.places)


def weights(agreeing: Int[Array, "B R"]) -> Int[Array, "B R"]:
    """Returns what places weigh: twice as much for each further token that agrees, nothing where none does."""
    weight = jnp.left_shift(jnp.int32(1), jnp.minimum(agreeing, HEAVIEST))
    return jnp.where(agreeing > 0, weight, 0)
