"""HAMburger's modules, trained beside a base that is trained too, changed by LoRA, or frozen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from jax_smash.checkpoints.fingerprint import fingerprint
from jax_smash.checkpoints.huggingface import resolve
from jax_smash.checkpoints.smasher import WEIGHTS, save_smasher
from jax_smash.models.transformer import abstract_params
from jax_smash.sharding import place
from jax_smash.smash.smasher import abstract_smasher
from train.data.slot_pieces import Segmented
from train.data.slot_rows import SlotBatch, held_out_slot_batches, slot_batches, tokens_of
from train.pack import file_sha256
from train.parts.hamburger.card import hamburger_card
from train.parts.hamburger.objective import smash_objective
from train.parts.hamburger.settings import SmashSettings
from train.parts.hamburger.start import base_params, first_smash_params
from train.parts.language_model.model_folder import check_tokenizer, write_model
from train.parts.lora import first_lora
from train.parts.part import Ended, Part, Rows, Shapes
from train.run.batches import Share
from train.run.frozen import Frozen
from train.run.loop import Loop
from train.run.settings import load_kind
from train.run.start import Stored, stored_weights
from train.run.step import Objective


@dataclasses.dataclass(frozen=True)
class Hamburger(Part):
    """The modules that let a base hold several tokens in one cache slot.

    Attributes:
      settings: of the run.
      segmented: what they are trained on; None to measure or compile their step alone.
      base: its weights; None likewise.
      tokenizer: folder of the base's tokenizer; None likewise.
      modules: folder of trained modules to begin with; None for random ones.
      teacher: weights that predictions are drawn to; None for the base that the run begins with.
    """

    settings: SmashSettings
    segmented: Segmented | None = None
    base: Stored | None = None
    tokenizer: Path | None = None
    modules: Path | None = None
    teacher: Stored | None = None

    name = "hamburger"
    hint = ""
    token_flops = 0.0

    @classmethod
    def from_files(
        cls,
        config: Path,
        segmented: Path,
        init_from: Path,
        *,
        modules: Path | None = None,
        teacher: Path | None = None,
        tokenizer: Path | None = None,
        **changes: Any,
    ) -> Hamburger:
        """Returns the modules that a training file describes, beside a base.

        Args:
          config: the file.
          segmented: folder of shards.
          init_from: Hugging Face folder of the base.
          modules, teacher: folders; None as for the attributes.
          tokenizer: folder of the tokenizer; None for the base's.
          changes: of the file's fields; None for what it says.

        Raises:
          ValueError, FileNotFoundError: a file is missing or damaged, or does not go with the others.
        """
        init_from = resolve(init_from)
        tokenizer = _tokenizer(init_from, tokenizer)
        rows, base = Segmented(segmented, tokenizer), stored_weights(init_from)
        taught_by = _teacher(teacher, base, tokenizer) if teacher else None
        settings = load_kind(
            SmashSettings,
            config,
            model=base.config,
            init_sha256=base.sha256,
            tokenizer_sha256=file_sha256(tokenizer / "tokenizer.json"),
            modules_sha256=file_sha256(modules / WEIGHTS) if modules else "",
            teacher_sha256=taught_by.sha256 if taught_by else "",
            **changes,
        )
        rows.check(settings.model, settings.smash)
        return cls(settings, rows, base, tokenizer, modules, taught_by)

    @property
    def data_sha256(self) -> str:
        """Of what was packed, and how it was segmented."""
        return self.segmented.sha256

    @property
    def graphdefs(self) -> tuple[nnx.GraphDef, nnx.GraphDef]:
        """Structures of base and modules."""
        model = self.settings.model
        return abstract_params(model)[0], abstract_smasher(model, self.settings.smash)[0]

    def check(self, loop: Loop) -> None:
        """Refuses nothing."""

    def shapes(self) -> Shapes:
        """Returns those of modules and base; where no files are given, frozen weights are bfloat16."""
        settings = self.settings
        base = abstract_params(settings.model)[1]
        trained: dict[str, Any] = {"smasher": abstract_smasher(settings.model, settings.smash)[1]}
        if settings.base == "trained":
            trained["base"] = base
        if settings.base == "lora":
            trained["lora"] = jax.eval_shape(lambda: first_lora(base, settings.rank, settings.seed))
        stored = self._frozen_weights()
        frozen = {
            role: abstract_params(settings.model, stored[role].dtype if role in stored else jnp.bfloat16)[1]
            for role in settings.frozen_roles
        }
        return Shapes(trained, frozen)

    def begin(self, mesh: Mesh) -> dict[str, Any]:
        """Returns the modules, and the base or its changes where they are trained."""
        base = abstract_params(self.settings.model)[1]
        if self.settings.base == "trained":
            base = self.base.load(mesh, dtype=jnp.float32)[0]
        return place(first_smash_params(self.settings, base, self.modules)[1], mesh)

    def frozen(self, mesh: Mesh) -> Frozen | None:
        """Returns the base where it is not trained, and the teacher where it is not that base."""
        stored = self._frozen_weights()
        if not stored:
            return None
        loaded = {role: weights.load(mesh) for role, weights in stored.items()}
        return Frozen(
            params={role: params for role, (params, _) in loaded.items()},
            fingerprints={role: mark for role, (_, mark) in loaded.items()},
            sources={role: weights.folder for role, weights in stored.items()},
        )

    def _frozen_weights(self) -> dict[str, Stored]:
        by_role = {"base": self.base, "teacher": self.teacher or self.base}
        return {role: by_role[role] for role in self.settings.frozen_roles if by_role[role] is not None}

    def optimiser(self) -> optax.GradientTransformation:
        """Returns the optimiser of what is trained, by role."""
        return self.settings.transformation()

    def objective(self) -> Objective:
        """Returns the loss of every token of the groups, and of where they end."""
        return smash_objective(*self.graphdefs, self.settings)

    def measured(self) -> Objective:
        """Returns the same without what the training added to keep near the old base."""
        return smash_objective(*self.graphdefs, self.settings.measured())

    def rows(self, held_out: int, share: Share) -> Rows:
        """Returns rows of slots."""
        settings = self.settings
        batches = slot_batches(
            self.segmented,
            room=settings.room,
            micro_steps=settings.micro_steps,
            batch_size=settings.batch_size,
            seed=settings.seed,
            answer_weight=settings.answer_weight,
            cut_share=settings.cut_share,
            unfused_share=settings.unfused_share,
            singles=settings.beyond_weight > 0,
            share=share,
        )
        return Rows(batches, self.held_out(held_out), tokens=lambda: batches.tokens)

    def held_out(self, most: int) -> Mapping[str, Iterable[Any]]:
        """Returns rows of slots of documents that are not trained on."""
        settings = self.settings
        return held_out_slot_batches(
            self.segmented,
            room=settings.room,
            micro_steps=settings.micro_steps,
            batch_size=settings.batch_size,
            rows=most,
        )

    def tokens_of(self, batch: SlotBatch) -> int:
        """Returns how many tokens a batch's slots hold."""
        return tokens_of(batch)

    def random_batch(self, seed: int = 0) -> SlotBatch:
        """Returns rows of one reply each, all groups of a size that leaves room for them."""
        settings, room = self.settings, self.settings.room
        rows, slots = settings.batch_size, room.slots
        size = min(settings.micro_steps, max(1, room.tokens // slots))
        tokens = np.zeros((rows, slots, settings.micro_steps), np.int32)
        rng = np.random.default_rng(seed)
        tokens[:, :, :size] = rng.integers(0, settings.model.vocab_size, (rows, slots, size))
        ones = np.ones((rows, slots), np.int32)
        # The last slot is followed by none.
        further = np.where(np.arange(room.further) < (slots - 1) * (size > 1), np.arange(room.further), -1)
        return SlotBatch(
            count=size * ones,
            tokens=tokens,
            position=np.cumsum(size * ones, axis=1, dtype=np.int32) - 1,
            segments=ones,
            weights=(np.arange(settings.micro_steps) < size) * np.ones(tokens.shape, np.float32),
            spoken=ones > 0,
            cut=ones < 0,
            further=np.tile(further.astype(np.int32), (rows, 1)),
        )

    def stored(self, trained: dict[str, Any], frozen: Frozen | None) -> dict[str, Any]:
        """Returns the modules, and the base where the run changed it, rounded to bfloat16."""
        params = trained if frozen is None else {**frozen.params, **trained}
        kept = {"smasher": trained["smasher"]}
        if self.settings.base != "frozen":
            kept["base"] = base_params(self.settings, params)
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16), kept)

    def save(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None) -> None:
        """Writes the modules, and a Hugging Face folder of the base where the run changed it."""
        settings = self.settings
        if "base" in stored:
            source = None if self.base is None else self.base.folder
            write_model(folder, settings.model, stored["base"], self.tokenizer, source=source)
        counts = self.segmented.reply_counts(settings.model.vocab_size, settings.room)
        mark = self._base_fingerprint(stored, frozen)
        save_smasher(folder, settings.smash, stored["smasher"], token_counts=counts, base_fingerprint=mark)

    def card(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None, ended: Ended) -> str:
        """Returns the card."""
        return hamburger_card(
            self.settings,
            self.segmented.segmentation,
            step=ended.step,
            tokens=ended.tokens,
            losses=ended.losses,
            base_fingerprint=self._base_fingerprint(stored, frozen),
            sources=ended.sources,
        )

    def _base_fingerprint(self, stored: dict[str, Any], frozen: Frozen | None) -> str:
        """Returns that of the base that goes with the modules."""
        if "base" in stored or frozen is None:
            return fingerprint(self.settings.model, stored["base"])
        return frozen.fingerprints["base"]


def _tokenizer(init_from: Path, tokenizer: Path | None) -> Path:
    """Returns the folder of the tokenizer: the base's, or another with the same one.

    Raises:
      FileNotFoundError, ValueError: it is missing or damaged, or is not the base's.
    """
    tokenizer = tokenizer or init_from
    check_tokenizer(tokenizer)
    own = init_from / "tokenizer.json"
    if own.is_file() and file_sha256(own) != file_sha256(tokenizer / "tokenizer.json"):
        raise ValueError(f"tokenizer must be that of {init_from}: modules are loaded for it alone; got {tokenizer}")
    return tokenizer


def _teacher(folder: Path, base: Stored, tokenizer: Path) -> Stored:
    """Returns the teacher's weights: of the base's shape, with the same tokenizer.

    Raises:
      FileNotFoundError, ValueError: it is missing or damaged, or of another shape or tokenizer.
    """
    folder = resolve(folder)
    check_tokenizer(folder)
    if file_sha256(folder / "tokenizer.json") != file_sha256(tokenizer / "tokenizer.json"):
        raise ValueError(f"the teacher must have the base's tokenizer; {folder} has another")
    found = stored_weights(folder)
    if found.config != base.config:
        raise ValueError(f"the teacher must have the base's shape; {folder} has another")
    return found
