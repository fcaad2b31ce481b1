"""An EAGLE-3 drafter, trained beside a frozen target."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Int

from jax_smash.checkpoints.eagle import save_eagle
from jax_smash.models.eagle import TokenIds, abstract_eagle, random_eagle
from jax_smash.models.transformer import abstract_params
from jax_smash.sharding import place
from train.data.rows import Batch, Packed
from train.parts.drafter.base import head_rows, target_folder
from train.parts.drafter.card import drafter_card
from train.parts.drafter.objective import CHUNK_OF_DRAFTER, eagle_objective
from train.parts.drafter.rows import ReplyRows, commonest, random_batch, replies_of
from train.parts.drafter.settings import EagleSettings
from train.parts.part import Ended, Part, Rows, Shapes
from train.run.batches import Share
from train.run.frozen import Frozen
from train.run.loop import Loop
from train.run.settings import load_kind
from train.run.start import Stored, quick_to_learn, stored_weights
from train.run.step import Objective


@dataclasses.dataclass(frozen=True)
class EaglePart(Part):
    """EAGLE-3's layer for a target.

    Attributes:
      settings: of the run.
      packed: what it is trained on; None to measure or compile its step alone.
      base: the target's weights; None likewise.
    """

    settings: EagleSettings
    packed: Packed | None = None
    base: Stored | None = None

    name = "drafter"
    hint = ""
    token_flops = 0.0

    @classmethod
    def from_files(cls, config: Path, packed: Path, base: str | Path, **changes: Any) -> EaglePart:
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
        settings = load_kind(EagleSettings, config, model=stored.config, init_sha256=stored.sha256, **changes)
        return cls(settings, Packed(packed, folder), stored)

    @property
    def data_sha256(self) -> str:
        """Of what was packed."""
        return self.packed.index["sources_sha256"]

    @functools.cached_property
    def tokens(self) -> Int[np.ndarray, "X"]:
        """Tokens that the drafter can say: the commonest of the replies."""
        config = self.settings.eagle
        if self.packed is None or config.head_size == config.vocab_size:
            return np.arange(config.head_size)
        return commonest(self.counts, config.head_size)

    @functools.cached_property
    def counts(self) -> Int[np.ndarray, "V"]:
        """How often each token stands in the replies that are trained on."""
        return self._rows.counts(self.settings.model.vocab_size)

    @functools.cached_property
    def _rows(self) -> ReplyRows:
        settings = self.settings
        # The target's tokenizer, which the shards were packed with.
        replies = replies_of(self.base.folder, settings.reply_begins, settings.reply_ends)
        return ReplyRows(self.packed, replies, settings.length, settings.batch_size)

    def check(self, loop: Loop) -> None:
        """Refuses nothing."""

    def shapes(self) -> Shapes:
        """Returns those of the drafter's weights and the target's; without files the target is bfloat16."""
        trained, _ = _trained(abstract_eagle(self.settings.eagle)[1])
        dtype = jnp.bfloat16 if self.base is None else self.base.dtype
        return Shapes({"drafter": trained}, {"base": abstract_params(self.settings.model, dtype)[1]})

    def begin(self, mesh: Mesh) -> dict[str, Any]:
        """Returns random weights, but for the head: its rows are those of the target's."""
        settings, config = self.settings, self.settings.eagle
        params = quick_to_learn(random_eagle(config, settings.seed)[1], config.layer, settings.seed)
        rows = head_rows(self.base, self.tokens)
        trained, _ = _trained(params)
        trained["head"].set_value(jnp.asarray(rows))
        return place({"drafter": trained}, mesh)

    def frozen(self, mesh: Mesh) -> Frozen:
        """Returns the target."""
        params, mark = self.base.load(mesh)
        return Frozen(params={"base": params}, fingerprints={"base": mark}, sources={"base": self.base.folder})

    def optimiser(self) -> optax.GradientTransformation:
        """Returns the optimiser of the drafter's weights."""
        return self.settings.optimiser.build(self.settings.steps)

    def objective(self) -> Objective:
        """Returns the cross-entropy against the target's predictions, of every step of training-time test."""
        return self._objective(self.settings)

    def measured(self) -> Objective:
        """Returns the same in float32."""
        return self._objective(self.settings.measured())

    def _objective(self, settings: EagleSettings) -> Objective:
        (target, _), (drafter, _) = abstract_params(settings.model), abstract_eagle(settings.eagle)

        def structure(trained: Any) -> Any:
            return nnx.merge(drafter, self._whole(trained))

        return eagle_objective(target, structure, settings, self.tokens, chunk=CHUNK_OF_DRAFTER)

    def _whole(self, trained: Any) -> nnx.State:
        """Returns all parameters: those that are trained, and the tokens of the head's rows."""
        config = self.settings.eagle
        if config.head_size == config.vocab_size:
            return trained
        return nnx.merge_state(trained, nnx.State({"tokens": TokenIds(jnp.asarray(self.tokens, jnp.int32))}))

    def rows(self, held_out: int, share: Share) -> Rows:
        """Returns packed rows of which replies count."""
        batches = self._rows.training(self.settings.seed, share)
        return Rows(batches, self.held_out(held_out), tokens=lambda: batches.tokens)

    def held_out(self, most: int) -> Mapping[str, Iterable[Any]]:
        """Returns packed rows of documents that are not trained on."""
        return self._rows.held_out(most)

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

    def save(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None) -> None:
        """Writes what `--method eagle --drafter FOLDER` reads, bound to the target's weights."""
        params = self._whole(stored["drafter"])
        save_eagle(folder, self.settings.eagle, params, base_fingerprint=frozen.fingerprints["base"])

    def card(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None, ended: Ended) -> str:
        """Returns the card, with held-out accuracies of the stored weights."""
        settings, config = self.settings, self.settings.eagle
        on = {"taps normed": config.tap_norms, "normed features fed back": config.feeds_normed}
        on |= {"normed residual": config.residual_normed}
        covered = self.counts[self.tokens].sum() / max(int(self.counts.sum()), 1)
        return drafter_card(
            settings,
            ended,
            title="An EAGLE-3 drafter",
            about={
                "Taps": f"what enters layers {', '.join(map(str, config.taps))} of the target (from 0)",
                "Tokens that it can say": f"{config.head_size:,}, {covered:.1%} of those of the replies",
                "Norms of EAGLE-3.1": ", ".join(name for name, given in on.items() if given) or "none",
                "Training-time test": f"{settings.test_steps} steps, each counting {settings.step_decay:g} of the last",
            },
            command="jax-smash generate --method eagle --drafter FOLDER --model TARGET",
            base_fingerprint=frozen.fingerprints["base"],
            depths=settings.test_steps,
        )


def _trained(params: nnx.State) -> tuple[nnx.State, nnx.State]:
    """Returns the parameters that are trained, and the others."""
    return nnx.split_state(params, nnx.Param, ...)
