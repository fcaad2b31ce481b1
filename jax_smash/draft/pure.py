"""Drafters as pure functions of what they keep of a row, and what makes `Drafter`s of them."""

import abc
import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jax_smash.draft.tree import DraftTree, Topology, at_nodes
from jax_smash.protocols import Params
from jax_smash.pytree import pytree, replace
from jax_smash.sampling import process


@pytree
class Seen:
    """A piece of the prompts that the target has read.

    Attributes:
      token: of each entry; anything at padding, which stands on the right.
      valid: False at padding.
      position: of the piece's first entry: tokens that the target had read before.
      taps: of each entry, those that the drafter needs.
    """

    token: Int[Array, "B T"]
    valid: Bool[Array, "B T"]
    position: Int[Array, "B"]
    taps: tuple[Float[Array, "B T D"], ...]


@pytree
class Context:
    """What a draft goes on from.

    Attributes:
      pending: the token that the target has not read.
      token_length: tokens of the sequence, the pending one included.
      key: random key of the row.
      processors: of the target's logits.
      memory: their states.
    """

    pending: Int[Array, "B"]
    token_length: Int[Array, "B"]
    key: Key[Array, "B"]
    processors: tuple[Any, ...]
    memory: tuple[Any, ...]

    def processed(self, logits: Float[Array, "B A V"], path: Int[Array, "B A P"]) -> Float[Array, "B A V"]:
        """Returns the logits that tokens are chosen from.

        Args:
          logits: of some nodes.
          path: tokens from the pending one, left out, to each node, padded with −1.
        """
        return process(self.processors, self.memory, logits, path)


@pytree
class Outcome:
    """What became of a draft.

    Attributes:
      count: tokens that were emitted; 0 for a row that had ended.
      token: those tokens; anything behind `count`.
      taps: those that the drafter needs, of the entries that were committed: the pending token's, then those of all
        emitted tokens but the last.
    """

    count: Int[Array, "B"]
    token: Int[Array, "B P"]
    taps: tuple[Float[Array, "B P D"], ...]


class PureDrafter(abc.ABC):
    """A drafter that sees of the state only what it is given. Hashable, and without arrays: it is compiled in."""

    @property
    @abc.abstractmethod
    def taps(self) -> tuple[int, ...]:
        """The target's taps that it needs."""

    @abc.abstractmethod
    def init(self, params: Params, batch: int, slots: int, block: int) -> Any:
        """Makes what is kept of rows that have seen nothing; every leaf is `[B, …]`.

        Args:
          params: of every module that decodes, by role.
          batch: rows.
          slots: tokens that the target can hold.
          block: tokens that a step emits at most.
        """

    @abc.abstractmethod
    def read(self, params: Params, own: Any, seen: Seen) -> Any:
        """Returns what is kept after a piece of the prompts."""

    @abc.abstractmethod
    def propose(self, params: Params, own: Any, context: Context, topology: Topology) -> tuple[DraftTree, Any]:
        """Returns a tree with the topology's nodes and levels, and what `learn` needs of the way it was made."""

    @abc.abstractmethod
    def learn(self, params: Params, own: Any, made: Any, outcome: Outcome) -> Any:
        """Returns what is kept after the tree was checked."""


@dataclasses.dataclass(frozen=True)
class OnState:
    """A pure drafter as the loop calls it: takes what it sees from the state, and puts back what it keeps.

    It learns from checked trees alone: of tokens that were read without a draft the state keeps no taps. So its trees
    cannot be sized while decoding.

    Attributes:
      drafter: the pure one.
      block: tokens that a step emits at most.
    """

    drafter: PureDrafter
    block: int

    def init(self, params: Params, batch: int, slots: int) -> Any:
        """Makes what the drafter keeps."""
        return self.drafter.init(params, batch, slots, self.block)

    def prefill(self, params: Params, state: Any, chunk: Any, hidden: Any, taps: Any) -> Any:
        """Shows it a piece of the prompts."""
        seen = Seen(
            token=chunk.tokens,
            valid=chunk.valid,
            position=state.rows.token_length - chunk.valid.sum(axis=1, dtype=jnp.int32),
            taps=self._needed(taps),
        )
        return _with(state, self.drafter.read(params, state.rows.draft.drafter, seen))

    def propose(self, params: Params, state: Any, topology: Topology) -> tuple[DraftTree, Any]:
        """Returns its tree, and what it made beside it."""
        rows = state.rows
        context = Context(
            pending=rows.pending,
            token_length=rows.token_length,
            key=rows.key,
            processors=state.shared.processors,
            memory=rows.processors,
        )
        return self.drafter.propose(params, rows.draft.drafter, context, topology)

    def lesson(self, params: Params, state: Any, checked: Any) -> Any:
        """Returns what was made, and the taps at all nodes: which of them count is not known yet."""
        return checked.made, self._needed(checked.taps)

    def observe(self, params: Params, state: Any, verified: Any) -> Any:
        """Tells it what became of the tree."""
        (made, taps), path = verified.lesson, verified.accepted.path
        outcome = Outcome(
            count=verified.count,
            token=at_nodes(verified.target, path),
            taps=tuple(jnp.take_along_axis(tap, path[:, :, None], axis=1) for tap in taps),
        )
        return _with(state, self.drafter.learn(params, state.rows.draft.drafter, made, outcome))

    def _needed(self, taps: tuple[Float[Array, "B T D"], ...]) -> tuple[Float[Array, "B T D"], ...]:
        return tuple(taps[i] for i in self.drafter.taps)


def _with(state: Any, own: Any) -> Any:
    return replace(state, rows=replace(state.rows, draft=replace(state.rows.draft, drafter=own)))
