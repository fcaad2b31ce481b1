"""What the parts of all drafters have in common: a frozen target, and rows of which replies count."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Int

from jax_smash.models.transformer import abstract_params
from train.data.rows import Batch, Packed
from train.data.states import States, read_record
from train.parts.drafter.base import target_folder
from train.parts.drafter.rows import ReplyRows, commonest, random_batch, replies_of
from train.parts.drafter.settings import DrafterSettings
from train.parts.drafter.states import check_states
from train.parts.part import Part, Rows
from train.run.batches import Share
from train.run.choice import Choice
from train.run.frozen import Frozen
from train.run.loop import Loop
from train.run.settings import load_kind
from train.run.start import Stored, stored_weights
from train.run.step import Measured, Objective

LAYERS = "layers"
"""What of a target's weights only makes states."""


@dataclasses.dataclass(frozen=True)
class BesideTarget(Part):
    """A drafter beside a frozen target. What is its own: its shapes, first weights, objective, files and card.

    Attributes:
      settings: of the run.
      packed: what it is trained on; None to measure or compile its step alone.
      base: the target's weights; None likewise.
      states: folder of what the target made of `packed`; None where it reads the rows itself.
    """

    settings: DrafterSettings
    packed: Packed | None = None
    base: Stored | None = None
    states: Path | None = None

    name = "drafter"
    hint = ""
    token_flops = 0.0

    kind: ClassVar[type[DrafterSettings]]
    """Of its settings."""

    @classmethod
    def from_files(
        cls, config: Path, packed: Path, base: str | Path, states: Path | None = None, /, **changes: Any
    ) -> Self:
        """Returns the drafter that a training file describes, beside a target.

        Args:
          config: the file.
          packed: folder of shards, packed with the target's tokenizer.
          base: the target: a shipped model or a Hugging Face folder.
          states: folder that `train.states` made of the same rows by the same target; None for none.
          changes: of the file's fields; None for what it says.

        Raises:
          ValueError, FileNotFoundError: a file is missing or damaged, or does not go with the others.
        """
        folder = target_folder(base)
        stored = stored_weights(folder)
        kept = read_record(states).described if states else ""
        settings = load_kind(cls.kind, config, model=stored.config, init_sha256=stored.sha256, states=kept, **changes)
        made = cls(settings, Packed(packed, folder), stored, states)
        if states:
            check_states(states, made.packed, stored, settings.length)
        # Making them refuses states of other taps.
        made.reply_rows.check_replies(settings.reply_begins, settings.reply_ends)
        return made

    @property
    def data_sha256(self) -> str:
        """Of what was packed."""
        return self.packed.index["sources_sha256"]

    @property
    def left_out(self) -> Sequence[Mapping[str, Any]]:
        """What the packed folder says of prompts that were left out, a record a file of answers."""
        return self.packed.index.get("left_out", ())

    @functools.cached_property
    def counts(self) -> Int[np.ndarray, "V"]:
        """How often each token stands in the replies that are trained on."""
        return self.reply_rows.counts(self.settings.model.vocab_size)

    @functools.cached_property
    def tokens(self) -> Int[np.ndarray, "X"]:
        """Tokens that the drafter can say: the commonest of the replies."""
        vocab_size = self.settings.model.vocab_size
        count = self.settings.head_size or vocab_size
        return np.arange(count) if self.packed is None or count == vocab_size else commonest(self.counts, count)

    @property
    def said(self) -> Int[np.ndarray, "X"] | None:
        """The same of a drafter that says some by the target's head; None where it says all."""
        return self.tokens if self.settings.head_size else None

    @property
    def said_told(self) -> dict[str, str]:
        """What the card tells of them; nothing where it says all."""
        if not self.settings.head_size:
            return {}
        covered = self.counts[self.tokens].sum() / max(int(self.counts.sum()), 1)
        return {"Tokens that it can say": f"{len(self.tokens):,}, {covered:.1%} of those of the replies"}

    @functools.cached_property
    def reply_rows(self) -> ReplyRows:
        """Its rows."""
        settings = self.settings
        # The target's tokenizer, which the shards were packed with.
        states = States(self.states, self.packed, settings.read_taps) if self.states else None
        replies = replies_of(self.base.folder, settings.reply_begins, settings.reply_ends)
        return ReplyRows(self.packed, replies, settings.length, settings.batch_size, settings.choice_share, states)

    def check(self, loop: Loop) -> None:
        """Refuses nothing."""

    @property
    def target_shapes(self) -> Mapping[str, Any]:
        """Shapes of the target's weights, by role."""
        dtype = jnp.bfloat16 if self.base is None else self.base.dtype
        return {"base": abstract_params(self.settings.model, dtype)[1]}

    def frozen(self, mesh: Mesh) -> Frozen:
        """Returns the target's weights; beside kept states, only its embedding and output head."""
        params, mark = self.base.load(mesh, without=LAYERS if self.states else None)
        return Frozen(params={"base": params}, fingerprints={"base": mark}, sources={"base": self.base.folder})

    def optimiser(self) -> optax.GradientTransformation:
        """Returns the optimiser of the drafter's weights."""
        return self.settings.optimiser.build(self.settings.steps)

    def objective(self) -> Objective:
        """Returns the cross-entropy against the target's predictions, or the text."""
        return self._objective(self.settings)

    def measured(self) -> Objective:
        """Returns the same in float32."""
        return self._objective(self.settings.measured())

    def _objective(self, settings: Any) -> Objective:
        raise NotImplementedError

    def rows(self, held_out: int, share: Share) -> Rows:
        """Returns packed rows of which replies count."""
        batches = self.reply_rows.training(self.settings.seed, share)
        sets = self.reply_rows.choice(held_out)
        choice = Choice(sets, drafted_in_a_row) if sets else None
        return Rows(batches, self.held_out(held_out), tokens=lambda: batches.tokens, choice=choice)

    def held_out(self, most: int) -> Mapping[str, Iterable[Any]]:
        """Returns packed rows of documents that are neither trained on nor choose a step."""
        return self.reply_rows.held_out(most)

    def tokens_of(self, batch: Batch) -> int:
        """Returns how many tokens a batch has."""
        return int(np.count_nonzero(batch.segments))

    def random_batch(self, seed: int = 0) -> Batch:
        """Returns rows of one text each."""
        settings = self.settings
        return random_batch(settings.model.vocab_size, settings.batch_size, settings.length, seed)

    def stored(self, trained: dict[str, Any], frozen: Frozen | None) -> dict[str, Any]:
        """Returns the drafter's weights rounded to bfloat16."""
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16), trained)


def drafted_in_a_row(measured: Measured) -> float:
    """Returns how many drafts of a chain the target would keep, by the accuracies of its depths.

    Equivalent formula: Σ_d Π_{i ≤ d} (the share of entries at depth i whose likeliest token is the target's). Depths
    are taken to be independent, so it compares steps of one run and is no acceptance.
    """
    depths = sum(name.startswith("top1_") for name in measured.means)
    return float(np.sum(np.cumprod([measured.means[f"top1_{depth}"] for depth in range(1, depths + 1)])))
