"""What a drafter is told: of the rows as they are, of what was read, and of what became of its tree."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jax_smash.draft.trees.tree import DraftTree, at_nodes
from jax_smash.draft.verify.accept import Accepted
from jax_smash.protocols import LogitsProcessor
from jax_smash.pytree import pytree
from jax_smash.sampling import Constrained, Likeliest, Temperature, gumbel_noise, highest, process


@pytree
class Context:
    """The rows when a tree is to be drafted.

    Attributes:
      pending: each row's last token, the root of its tree, which the target has not read.
      token_length: tokens of each row, the pending one included.
      running: rows that have not ended.
      key: each row's random key.
      processors, processed: logits processors, and the state of each.
      cache: the target's, which holds all tokens but the pending one; None for a drafter that does not need it.
    """

    pending: Int[Array, "B"]
    token_length: Int[Array, "B"]
    running: Bool[Array, "B"]
    key: Key[Array, "B"]
    processors: tuple[LogitsProcessor, ...]
    processed: tuple[Any, ...]
    cache: Any = None

    def process(self, logits: Float[Array, "B A V"], path: Int[Array, "B A P"]) -> Float[Array, "B A V"]:
        """Returns the logits that tokens are chosen from.

        Args:
          logits: of some nodes.
          path: tokens behind the pending one, up to each node, padded with −1.
        """
        return process(self.processors, self.processed, logits, path)

    def ranked(
        self, logits: Float[Array, "B A V"], path: Int[Array, "B A P"], noisy: Int[Array, "B A"] | None = None
    ) -> Float[Array, "B A V"]:
        """Returns the logits that drafts are ranked by.

        They are those that tokens are chosen from, but for rows of temperature 0, whose choice leaves one token: their
        drafts are ranked as in a batch that does not sample, and have siblings.

        Args:
          logits, path: as of `process`.
          noisy: index, in the row's sequence, of the token behind each node, where the rows that sample have the noise
            of the target's choice after it; None for none.
        """
        chosen, temperature = next(
            ((i, p.temperature) for i, p in enumerate(self.processors) if isinstance(p, Temperature)),
            (len(self.processors), None),
        )
        text = process(self.processors[:chosen], self.processed[:chosen], logits, path).astype(jnp.float32)
        ranked = process(self.processors[chosen:], self.processed[chosen:], text, path)
        if noisy is not None:
            ranked = ranked + gumbel_noise(self.key, noisy, logits.shape[-1])
        return ranked if temperature is None else jnp.where((temperature == 0)[:, None, None], text, ranked)

    def between(self, logits: Float[Array, "B T V"], noisy: Int[Array, "B T"] | None = None) -> Int[Array, "B T P"]:
        """Returns the `path` to each of several places in a row, for a drafter that guesses them without knowing it.

        Beside a grammar it is the likeliest token of each place before, for these decide what may be said. Else nothing
        is taken to lie between.

        Args:
          logits: of each place.
          noisy: as of `ranked`.
        """
        batch, places = logits.shape[:2]
        if not any(isinstance(p, Constrained) for p in self.processors):
            return jnp.full((batch, places, 1), -1, jnp.int32)

        def behind(path: Int[Array, "B T"], place: Int[Array, ""]) -> tuple[Array, Array]:
            here = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=place, slice_size=1, axis=1)
            ranked = self.ranked(here(logits), path[:, None], None if noisy is None else here(noisy))
            said = jnp.where(ranked.max(-1) > -jnp.inf, highest(ranked), -1)
            return path.at[:, place].set(said[:, 0]), path

        nothing = jnp.full((batch, places), -1, jnp.int32)
        _, paths = jax.lax.scan(behind, nothing, jnp.arange(places, dtype=jnp.int32))
        return jnp.swapaxes(paths, 0, 1)


@pytree
class Seen:
    """A piece of the prompts, or tokens that were read without a draft, as the target has read them.

    Attributes:
      token: ids; anything at padding.
      valid: False at padding, which stands behind a row's tokens.
      position: of each token.
      hidden: the target's final hidden state of each token.
      taps: the residual that entered each of its layers, and the one behind the last; empty where it tells none.

    Of tokens that were read without a draft, hidden states and taps that the drafter does not need have no width.
    """

    token: Int[Array, "B T"]
    valid: Bool[Array, "B T"]
    position: Int[Array, "B T"]
    hidden: Float[Array, "B T _"]
    taps: tuple[Float[Array, "B T _"], ...]

    @property
    def count(self) -> Int[Array, "B"]:
        """Tokens of each row."""
        return self.valid.sum(1, dtype=jnp.int32)


@pytree
class Outcome:
    """What became of a tree.

    Attributes:
      tree: what was proposed.
      target: the token that the target chose at each kept node; at all others its choice where it was
        computed, else its likeliest token.
      accepted: the path that was kept, before a stop cuts it.
      count: number of tokens emitted; 0 for a row that had ended.
      running: rows that had not ended.
      pending: each row's last token now.
      likeliest: the target's likeliest tokens at each node, before any processor, as many as the drafter asks for or
        more; None where it asks for none.
      hidden, taps: at each node, as in `Seen`.
    """

    tree: DraftTree
    target: Int[Array, "B M"]
    accepted: Accepted
    count: Int[Array, "B"]
    running: Bool[Array, "B"]
    pending: Int[Array, "B"]
    likeliest: Likeliest | None
    hidden: Float[Array, "B M D"]
    taps: tuple[Float[Array, "B M D"], ...]

    @property
    def kept_tokens(self) -> Int[Array, "B P"]:
        """The tokens on the kept path, the root first; the first `count` of them are in the target's cache now."""
        return at_nodes(self.tree.token, self.accepted.path)

    @property
    def said_tokens(self) -> Int[Array, "B P"]:
        """The tokens that the target chose behind those; the first `count` of them were emitted."""
        return at_nodes(self.target, self.accepted.path)

    def along_path(self, features: Float[Array, "B M D"]) -> Float[Array, "B P D"]:
        """Returns features of the nodes on the kept path."""
        return jnp.take_along_axis(features, self.accepted.path[:, :, None], axis=1)
