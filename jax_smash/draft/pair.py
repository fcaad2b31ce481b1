"""Two drafters that learn side by side, whichever of them drafted."""

import abc
import dataclasses
from typing import Any

from jaxtyping import Array, Int

from jax_smash.draft.context import Context, Outcome, Seen
from jax_smash.draft.trees.tree import DraftTree, Topology
from jax_smash.protocols import LateLearner, Needs, Params

Pair = tuple[Any, Any]
"""Of the two drafters."""


@dataclasses.dataclass(frozen=True)
class DrafterPair(abc.ABC):
    """What a drafter of two others keeps, and how it learns: as each of them does, in a pair."""

    @property
    @abc.abstractmethod
    def parts(self) -> tuple[LateLearner, LateLearner]:
        """The two drafters."""

    @abc.abstractmethod
    def propose(
        self, params: Params, own: Pair, shared: Pair, context: Context, topology: Topology
    ) -> tuple[DraftTree, Pair]:
        """Returns a tree of the topology's nodes, and what each of the two is to learn with."""

    @property
    def needs(self) -> Needs:
        """What either of the two needs."""
        first, second = (part.needs for part in self.parts)
        return Needs(
            likeliest=max(first.likeliest, second.likeliest),
            totals=first.totals or second.totals,
            hidden=first.hidden or second.hidden,
            taps=tuple(sorted({*first.taps, *second.taps})),
        )

    def init(self, params: Params, batch: int, slots: int, block: int) -> Pair:
        """Makes what each of the two keeps of rows."""
        first, second = self.parts
        return first.init(params, batch, slots, block), second.init(params, batch, slots, block)

    def read(self, params: Params, own: Pair, shared: Pair, seen: Seen) -> tuple[Pair, Pair]:
        """Lets both learn from a piece of the prompt."""
        first, second = self.parts
        return _both(
            first.read(params, own[0], shared[0], seen),
            second.read(params, own[1], shared[1], seen),
        )

    def learn(self, params: Params, own: Pair, shared: Pair, made: Pair, outcome: Outcome) -> tuple[Pair, Pair]:
        """Lets both learn from the whole tree."""
        first, second = self.parts
        return _both(
            first.learn(params, own[0], shared[0], made[0], outcome),
            second.learn(params, own[1], shared[1], made[1], outcome),
        )

    def follow(
        self, params: Params, own: Pair, shared: Pair, seen: Seen, pending: Int[Array, "B"]
    ) -> tuple[Pair, Pair]:
        """Lets both learn from what was read meanwhile."""
        first, second = self.parts
        return _both(
            first.follow(params, own[0], shared[0], seen, pending),
            second.follow(params, own[1], shared[1], seen, pending),
        )


def _both(first: Pair, second: Pair) -> tuple[Pair, Pair]:
    """Returns what two drafters keep of rows, and what rows share, from what each keeps of both."""
    return (first[0], second[0]), (first[1], second[1])
