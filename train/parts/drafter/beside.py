"""What the parts of all drafters have in common: a frozen target, and rows of which replies count."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
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
from train.parts.drafter.base import target_folder
from train.parts.drafter.rows import ReplyRows, random_batch, replies_of
from train.parts.drafter.settings import DrafterSettings
from train.parts.part import Part, Rows
from train.run.batches import Share
from train.run.frozen import Frozen
from train.run.loop import Loop
from train.run.settings import load_kind
from train.run.start import Stored, stored_weights
from train.run.step import Objective


@dataclasses.dataclass(frozen=True)
class BesideTarget(Part):
    """A drafter beside a frozen target. What is its own: its shapes, first weights, objective, files and card.

    Attributes:
      settings: of the run.
      packed: what it is trained on; None to measure or compile its step alone.
      base: the target's weights; None likewise.
    """

    settings: DrafterSettings
    packed: Packed | None = None
    base: Stored | None = None

    name = "drafter"
    hint = ""
    token_flops = 0.0

    kind: ClassVar[type[DrafterSettings]]
    """Of its settings."""

    @classmethod
    def from_files(cls, config: Path, packed: Path, base: str | Path, **changes: Any) -> Self:
        """Returns the drafter that a training file describes, beside a target.

        Args:
          config: the file.
          packed: folder of shards, packed with the target's tokenizer.
          base: the target: a shipped model or a Hugging Face folder.
          changes: of the file's fields; None for what it says.

        Raises:
          ValueError, FileNotFoundError: a file is missing or damaged, or does not go with the others.
        """
        folder = target_folder(base)
        stored = stored_weights(folder)
        settings = load_kind(cls.kind, config, model=stored.config, init_sha256=stored.sha256, **changes)
        return cls(settings, Packed(packed, folder), stored)

    @property
    def data_sha256(self) -> str:
        """Of what was packed."""
        return self.packed.index["sources_sha256"]

    @functools.cached_property
    def counts(self) -> Int[np.ndarray, "V"]:
        """How often each token stands in the replies that are trained on."""
        return self.reply_rows.counts(self.settings.model.vocab_size)

    @functools.cached_property
    def reply_rows(self) -> ReplyRows:
        """Its rows."""
        settings = self.settings
        # The target's tokenizer, which the shards were packed with.
        replies = replies_of(self.base.folder, settings.reply_begins, settings.reply_ends)
        return ReplyRows(self.packed, replies, settings.length, settings.batch_size)

    def check(self, loop: Loop) -> None:
        """Refuses nothing."""

    @property
    def target_shapes(self) -> Mapping[str, Any]:
        """Shapes of the target's weights, by role."""
        dtype = jnp.bfloat16 if self.base is None else self.base.dtype
        return {"base": abstract_params(self.settings.model, dtype)[1]}

    def frozen(self, mesh: Mesh) -> Frozen:
        """Returns the target."""
        params, mark = self.base.load(mesh)
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
        return Rows(batches, self.held_out(held_out), tokens=lambda: batches.tokens)

    def held_out(self, most: int) -> Mapping[str, Iterable[Any]]:
        """Returns packed rows of documents that are not trained on."""
        return self.reply_rows.held_out(most)

    def tokens_of(self, batch: Batch) -> int:
        """Returns how many tokens a batch has room for."""
        return batch.tokens.size

    def random_batch(self, seed: int = 0) -> Batch:
        """Returns rows of one text each."""
        settings = self.settings
        return random_batch(settings.model.vocab_size, settings.batch_size, settings.length, seed)

    def stored(self, trained: dict[str, Any], frozen: Frozen | None) -> dict[str, Any]:
        """Returns the drafter's weights rounded to bfloat16."""
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16), trained)
