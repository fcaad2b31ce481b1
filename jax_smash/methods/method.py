"""A decoding method, and what it is made from."""

import dataclasses
from typing import Any

from jax_smash.costs import CostCurve, Follower, StoppingFollower
from jax_smash.draft.draft_model import Draws
from jax_smash.loading import Model
from jax_smash.methods.draft_options import DRAWS, DraftOptions
from jax_smash.protocols import Params, Strategy
from jax_smash.smash.options import SmashOptions


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to decode one model.

    Attributes:
      name: of `METHODS`.
      strategy: what one step of the loop does.
      params: parameters of every module that decodes, by role.
      memory: what the rows share at the start, by role, before any of them has read anything.
      source: the basis for the choice of trees, in words for the user; "" in plain decoding.
      curve: the cost curve that trees are sized by at first; None where they are not sized.
      follower: learns what steps take, and has trees sized by that; None where the curve alone counts.
      longest_piece: tokens of a prompt that what drafts reads at once, at most; None for any number.
    """

    name: str
    strategy: Strategy
    params: Params
    memory: dict[str, Any] = dataclasses.field(default_factory=dict)
    source: str = ""
    curve: CostCurve | None = None
    follower: Follower | StoppingFollower | None = None
    longest_piece: int | None = None

    def __repr__(self) -> str:
        """Names the strategy, and prints no weights."""
        return f"Method({self.name!r}, {type(self.strategy).__name__}; {', '.join(self.params)})"

    @property
    def nodes(self) -> int:
        """Nodes of the largest tree that a step checks, the root included; 1 where nothing is drafted."""
        trees = self.memory.get("trees")
        return max((topology.nodes for topology in trees.ladder), default=1) if trees else 1

    @property
    def levels(self) -> int:
        """Levels of the deepest tree that is asked for; 0 where nothing is drafted."""
        trees = self.memory.get("trees")
        return max((topology.levels for topology in trees.ladder), default=0) if trees else 0


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a method is made from.

    Attributes:
      model: the model that decodes.
      sampled: some row may sample.
      log_probs: how many likeliest tokens to record beside each emitted one; None for no record.
      draft: options of drafted decoding.
      smash: options of decoding with HAMburger.
      batch: rows that decode together.
      slots: cache slots for each row.
      within: the method that this one drafts for as a part of it; "" where it stands alone.
    """

    model: Model
    sampled: bool
    log_probs: int | None
    draft: DraftOptions
    smash: SmashOptions
    batch: int
    slots: int
    within: str = ""

    @property
    def draws(self) -> Draws:
        """How a drafter draws its tokens."""
        return DRAWS.get(self.draft.verify, Draws.COUPLED)

    @property
    def noisy(self) -> bool:
        """Whether drafts are made with the noise of the target's choice."""
        return self.sampled and self.draws is Draws.COUPLED
