"""A whole language model, trained on packed rows."""

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

from jax_smash.checkpoints.tokenizer import stop_tokens
from jax_smash.models.transformer import abstract_params
from jax_smash.sharding import place
from train.data.own_texts import own_texts
from train.data.rows import Batch, Packed, held_out_batches, training_batches
from train.parts.language_model.card import model_card
from train.parts.language_model.model_folder import TOKENIZER_FILES, check_tokenizer, write_model
from train.parts.language_model.objective import language_model_objective
from train.parts.language_model.samples import greedy_samples
from train.parts.part import Ended, Part, Rows, Shapes
from train.run.batches import Share
from train.run.frozen import Frozen
from train.run.loop import Loop
from train.run.settings import Settings, load_settings, with_special_tokens
from train.run.start import Stored, first_params, stored_weights
from train.run.step import Objective
from train.run.utilisation import token_flops


@dataclasses.dataclass(frozen=True)
class LanguageModel(Part):
    """A whole language model.

    Attributes:
      settings: of the run.
      packed: what it is trained on; None to measure or compile its step alone.
      tokenizer: folder of the tokenizer; None likewise.
      init: the weights that a run begins with; None for random ones.
    """

    settings: Settings
    packed: Packed | None = None
    tokenizer: Path | None = None
    init: Stored | None = None

    name = "model"
    hint = ", train.export exports what there is"

    @classmethod
    def from_files(
        cls, config: Path, packed: Path, tokenizer: Path, init_from: Path | None = None, **changes: Any
    ) -> LanguageModel:
        """Returns the model that a training file describes.

        Args:
          config: the file.
          packed: folder of shards.
          tokenizer: folder of the tokenizer.
          init_from: Hugging Face folder of the weights to begin with; None for random ones.
          changes: of the file's fields; None for what it says.

        Raises:
          ValueError, FileNotFoundError: a file is missing or damaged, or does not go with the others.
        """
        init = stored_weights(init_from) if init_from else None
        model = (
            dataclasses.replace(init.config, eos_tokens=stop_tokens(init.folder, init.config, None)) if init else None
        )
        sha256 = init.sha256 if init else None
        settings = load_settings(config, model=model, init_sha256=sha256, **changes)
        settings = with_special_tokens(settings, tokenizer)
        check_tokenizer(tokenizer, TOKENIZER_FILES)
        return cls(settings, Packed(packed, tokenizer), tokenizer, init)

    @property
    def data_sha256(self) -> str:
        """Of what was packed."""
        return self.packed.index["sources_sha256"]

    @property
    def token_flops(self) -> float:
        """Operations that training does a token."""
        return token_flops(self.settings.model, self.settings.length)

    @property
    def graphdef(self) -> nnx.GraphDef:
        """The model's structure."""
        return abstract_params(self.settings.model)[0]

    @property
    def saved_by(self) -> int:
        """Steps between two times that own texts are written."""
        return self.settings.own_every if self.settings.own_rows else 1

    def check(self, loop: Loop) -> None:
        """Refuses a run whose checkpoints lie between two times that own texts are written."""
        every = self.saved_by
        if loop.save_every % every or loop.end % every:
            raise ValueError(
                f"own_every must divide the steps between checkpoints and the last step, for a run to resume to the "
                f"same weights; got {every}, {loop.save_every} and {loop.end}"
            )

    def shapes(self) -> Shapes:
        """Returns the model's."""
        return Shapes(abstract_params(self.settings.model)[1], {})

    def begin(self, mesh: Mesh) -> nnx.State:
        """Returns the weights of the folder that was given, or random ones."""
        if self.init is not None:
            return self.init.load(mesh, dtype=jnp.float32)[0]
        settings = self.settings
        return place(first_params(settings.model, settings.seed, recall=settings.recall)[1], mesh)

    def frozen(self, mesh: Mesh) -> None:
        """Returns None: all weights are trained."""

    def optimiser(self) -> optax.GradientTransformation:
        """Returns the optimiser of all weights."""
        return self.settings.optimiser.build(self.settings.steps)

    def objective(self) -> Objective:
        """Returns the cross-entropy of the next token."""
        settings = self.settings
        return language_model_objective(self.graphdef, dtype=settings.dtype, remat=settings.remat, scan=settings.scan)

    def measured(self) -> Objective:
        """Returns the same in float32."""
        return language_model_objective(self.graphdef)

    def rows(self, held_out: int, share: Share) -> Rows:
        """Returns packed rows, the model's own texts among them if the settings ask for that."""
        settings = self.settings
        batches = training_batches(
            self.packed,
            length=settings.length,
            batch_size=settings.batch_size,
            seed=settings.seed,
            answer_weight=settings.answer_weight,
            circle_weight=settings.circle_weight,
            share=share,
        )
        if not settings.own_rows:
            return Rows(batches, self.held_out(held_out))
        own = own_texts(settings, batches.batches, self.packed, self.graphdef)
        shared = dataclasses.replace(batches, batches=own)
        return Rows(shared, self.held_out(held_out), refresh=own.refresh)

    def held_out(self, most: int) -> Mapping[str, Iterable[Any]]:
        """Returns packed rows of documents that are not trained on."""
        settings = self.settings
        return held_out_batches(self.packed, length=settings.length, batch_size=settings.batch_size, rows=most)

    def tokens_of(self, batch: Batch) -> int:
        """Returns how many tokens a batch has room for."""
        return batch.tokens.size

    def random_batch(self, seed: int = 0) -> Batch:
        """Returns rows of one document each."""
        settings = self.settings
        rng, rows = np.random.default_rng(seed), settings.batch_size
        tokens = rng.integers(0, settings.model.vocab_size, (rows, settings.length + 1)).astype(np.int32)
        ones = np.ones((rows, settings.length), np.int32)
        positions = np.cumsum(ones, axis=1, dtype=np.int32) - 1
        return Batch(tokens[:, :-1], tokens[:, 1:], positions, ones, ones.astype(np.float32))

    def stored(self, trained: nnx.State, frozen: Frozen | None) -> nnx.State:
        """Returns the weights rounded to bfloat16."""
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16), trained)

    def save(self, folder: Path, stored: nnx.State, frozen: Frozen | None) -> None:
        """Writes a Hugging Face folder."""
        write_model(folder, self.settings.model, stored, self.tokenizer)

    def card(self, folder: Path, stored: nnx.State, frozen: Frozen | None, ended: Ended) -> str:
        """Returns the model card, with greedy samples."""
        samples = greedy_samples(folder)
        return model_card(
            self.settings, self.packed.index, samples, step=ended.step, losses=ended.losses, sources=ended.sources
        )
