"""What a training program gives to `train.run.flow.run`, which does the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import optax
from jax.sharding import Mesh

from train.run.batches import Batches, Share
from train.run.choice import Choice
from train.run.frozen import Frozen
from train.run.loop import Loop
from train.run.settings import Settings
from train.run.step import Objective


class Shapes(NamedTuple):
    """Shapes, dtypes and logical axes of a part's weights, without memory.

    Attributes:
      trained: what is trained, by role where some weights are frozen.
      frozen: what is not, by role; empty where all is trained.
    """

    trained: Any
    frozen: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Rows:
    """What a part is trained and measured on.

    Attributes:
      batches: of this host.
      held_out: named sets of batches.
      tokens: counts those of all batches so far; None where nobody asks.
      refresh: told the weights and the number of steps made before each batch is asked for; None where rows do not
        depend on the weights.
      choice: how the step that is exported is chosen, and on which rows; None for the last step.
    """

    batches: Batches
    held_out: Mapping[str, Iterable[Any]]
    tokens: Callable[[], int] | None = None
    refresh: Callable[[Any, int], None] | None = None
    choice: Choice | None = None


@dataclasses.dataclass(frozen=True)
class Ended:
    """A run at its end, for the card of what it exports.

    Attributes:
      step: steps that made the weights: of a run that chooses, not always its last.
      losses: held-out losses of the stored weights in nats a token, over all and of each source.
      tokens: that were trained on; 0 where nobody counted.
      sources: Markdown on the text and its licences.
      score: that the step was chosen for; None where it is the last one.
      means: what the objective tells beside the loss, over all held-out rows, by name.
    """

    step: int
    losses: tuple[float, dict[str, float]]
    tokens: int = 0
    sources: str = ""
    score: float | None = None
    means: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Part(Protocol):
    """Something that is trained: a whole model, or modules beside a frozen one.

    It is made from files, before JAX is used and before anything is written, and what does not fit is refused there.
    Weights are read by `begin` and `frozen` alone, tensor by tensor onto the devices. What is trained begins in
    float32; what is frozen keeps the dtype of its files.

    Attributes:
      name: of the folder, within a run's, that the export goes to.
      settings: what decides the weights that a run ends with.
      hint: what is said of a run that stops early, behind that it may be resumed.
    """

    name: str
    hint: str
    settings: Settings

    @property
    def data_sha256(self) -> str:
        """Of what it is trained on."""

    @property
    def token_flops(self) -> float:
        """Operations that training does a token, for the share of the devices' peak; 0 where nobody counted."""

    @property
    def saved_by(self) -> int:
        """Steps of which a checkpoint's must be a multiple, for a run to resume to the same weights."""
        return 1

    def check(self, loop: Loop) -> None:
        """Raises ValueError where a run of this length, saved as often, would not resume to the same weights."""

    def shapes(self) -> Shapes:
        """Returns the shapes of the weights."""

    def begin(self, mesh: Mesh) -> Any:
        """Returns the weights that a new run begins with, on a mesh."""

    def frozen(self, mesh: Mesh) -> Frozen | None:
        """Returns the weights that are not trained, on a mesh; None where all are."""

    def optimiser(self) -> optax.GradientTransformation:
        """Returns the optimiser of what is trained."""

    def objective(self) -> Objective:
        """Returns what is minimised."""

    def evaluated(self) -> Objective:
        """Returns what held-out rows are measured by while a run goes on."""
        return self.objective()

    def rows(self, held_out: int, share: Share) -> Rows:
        """Returns what a host trains on, and at most so many held-out rows of each source; 0 for all."""

    def held_out(self, most: int) -> Mapping[str, Iterable[Any]]:
        """Returns the held-out rows of each source in batches, at most so many; 0 for all."""

    def tokens_of(self, batch: Any) -> int:
        """Returns how many tokens a batch has, for the speed."""

    def random_batch(self, seed: int = 0) -> Any:
        """Returns a batch of random tokens, to measure or compile a step on."""

    def measured(self) -> Objective:
        """Returns what exported weights are measured by, in float32."""

    def stored(self, trained: Any, frozen: Frozen | None) -> Any:
        """Returns the weights that the export holds, in the dtype that it holds them in."""

    def save(self, folder: Path, stored: Any, frozen: Frozen | None) -> None:
        """Writes the stored weights, and what goes with them, into an existing folder."""

    def card(self, folder: Path, stored: Any, frozen: Frozen | None, ended: Ended) -> str:
        """Returns the card, as Markdown, of what `save` wrote into a folder."""
