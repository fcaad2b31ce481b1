"""Predictors of attention, trained beside a frozen base."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from jax_smash.checkpoints.butler import save_butler
from jax_smash.checkpoints.huggingface import resolve
from jax_smash.models.predictors import LowRankConfig, abstract_predictor, random_predictor
from jax_smash.models.transformer import abstract_params
from jax_smash.sharding import place
from train.data.rows import Batch, Packed, held_out_batches, training_batches
from train.pack import file_sha256
from train.parts.butler.card import butler_card
from train.parts.butler.objective import butler_objective
from train.parts.butler.principal import moments_of, principal_weights
from train.parts.butler.settings import ROLE, ButlerSettings
from train.parts.language_model.part import LanguageModel
from train.parts.part import Ended, Part, Rows, Shapes
from train.run.batches import Share
from train.run.frozen import Frozen
from train.run.loop import Loop
from train.run.settings import load_kind
from train.run.start import Stored, stored_weights
from train.run.step import Objective

TOKENIZER = "tokenizer.json"

MEASURED = 8
"""Batches that first weights are measured on."""


@dataclasses.dataclass(frozen=True)
class Butler(Part):
    """Predictors of which entries of a cache a base attends to.

    Attributes:
      settings: of the run.
      packed: what it is trained on; None to measure or compile its step alone.
      base: the base's weights; None likewise.
    """

    settings: ButlerSettings
    packed: Packed | None = None
    base: Stored | None = None

    name = "butler"
    hint = ""
    token_flops = 0.0

    @classmethod
    def from_files(cls, config: Path, packed: Path, base: Path, **changes: Any) -> Butler:
        """Returns the predictors that a training file describes, beside a base.

        Args:
          config: the file.
          packed: folder of shards.
          base: Hugging Face folder of the base, with its tokenizer.
          changes: of the file's fields; None for what it says.

        Raises:
          ValueError, FileNotFoundError: a file is missing or damaged, or does not go with the others.
        """
        folder = resolve(base)
        stored = stored_weights(folder)
        if not (folder / TOKENIZER).is_file():
            raise FileNotFoundError(f"{folder / TOKENIZER} is missing")
        rows = Packed(packed, folder)
        marks = {"init_sha256": stored.sha256, "tokenizer_sha256": file_sha256(folder / TOKENIZER)}
        return cls(load_kind(ButlerSettings, config, model=stored.config, **marks, **changes), rows, stored)

    @property
    def data_sha256(self) -> str:
        """Of what was packed."""
        return self.packed.index["sources_sha256"]

    @property
    def graphdefs(self) -> tuple[nnx.GraphDef, dict[str, nnx.GraphDef]]:
        """Structures of the base, and of each predictor by name."""
        predictors = {name: abstract_predictor(config)[0] for name, config in self.settings.configs.items()}
        return abstract_params(self.settings.model)[0], predictors

    def check(self, loop: Loop) -> None:
        """Refuses nothing."""

    def shapes(self) -> Shapes:
        """Returns those of predictors and base; where no files are given, the base is bfloat16."""
        dtype = jnp.bfloat16 if self.base is None else self.base.dtype
        trained = {name: abstract_predictor(config)[1] for name, config in self.settings.configs.items()}
        return Shapes({ROLE: trained}, {"base": abstract_params(self.settings.model, dtype)[1]})

    def begin(self, mesh: Mesh) -> dict[str, Any]:
        """Returns random predictors; those of low rank begin with the principal directions of the base's heads."""
        configs, seed = self.settings.configs, self.settings.seed
        made: dict[str, Any] = {name: random_predictor(config, seed)[1] for name, config in configs.items()}
        projecting = {name: config for name, config in configs.items() if isinstance(config, LowRankConfig)}
        if projecting:
            base = self.base.load(mesh)[0]
            rows = self.rows(0, Share.of_this_process()).batches
            batches = [next(rows) for _ in range(MEASURED)]
            moments = moments_of(self.graphdefs[0], base, self.settings, batches, mesh)
            del base  # The run reads it again.
            scale = self.settings.model.query_scale
            for name, config in projecting.items():
                weights = principal_weights(*moments, config, scale, seed)
                for key, value in zip(("w_queries", "w_keys"), weights, strict=True):
                    made[name][key] = made[name][key].replace(jnp.asarray(value, jnp.float32))
        return place({ROLE: made}, mesh)

    def frozen(self, mesh: Mesh) -> Frozen:
        """Returns the base, in the dtype of its files."""
        params, mark = self.base.load(mesh)
        return Frozen(params={"base": params}, fingerprints={"base": mark}, sources={"base": self.base.folder})

    def optimiser(self) -> optax.GradientTransformation:
        """Returns the optimiser of the predictors."""
        return self.settings.transformation()

    def objective(self) -> Objective:
        """Returns how far the predictors are from the base's attention."""
        return butler_objective(*self.graphdefs, self.settings)

    def evaluated(self) -> Objective:
        """Returns the same with recall, of some of a row's queries."""
        return butler_objective(*self.graphdefs, self.settings.evaluated(), with_recall=True)

    def measured(self) -> Objective:
        """Returns the same, the predictors in float32."""
        return butler_objective(*self.graphdefs, self.settings.measured(), with_recall=True)

    def rows(self, held_out: int, share: Share) -> Rows:
        """Returns packed rows."""
        settings = self.settings
        batches = training_batches(
            self.packed,
            length=settings.length,
            batch_size=settings.batch_size,
            seed=settings.seed,
            share=share,
        )
        return Rows(batches, self.held_out(held_out), tokens=lambda: batches.tokens)

    def held_out(self, most: int) -> Mapping[str, Iterable[Any]]:
        """Returns packed rows of documents that are not trained on."""
        settings = self.settings
        return held_out_batches(self.packed, length=settings.length, batch_size=settings.batch_size, rows=most)

    def tokens_of(self, batch: Batch) -> int:
        """Returns how many tokens a batch has room for."""
        return batch.tokens.size

    def random_batch(self, seed: int = 0) -> Batch:
        """Returns rows of one document each."""
        return LanguageModel(self.settings).random_batch(seed)

    def stored(self, trained: dict[str, Any], frozen: Frozen | None) -> dict[str, Any]:
        """Returns the predictors, rounded to bfloat16."""
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16), trained)

    def save(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None) -> None:
        """Writes each predictor to a folder of its name, bound to the base's weights."""
        mark = frozen.fingerprints["base"]
        length = self.settings.length
        for name, config in self.settings.configs.items():
            params = stored[ROLE][name]
            save_butler(folder / name, config, params, base_fingerprint=mark, trained_length=length)

    def card(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None, ended: Ended) -> str:
        """Returns the card."""
        parameters = {name: sum(x.size for x in jax.tree.leaves(params)) for name, params in stored[ROLE].items()}
        return butler_card(self.settings, ended, parameters=parameters, base_fingerprint=frozen.fingerprints["base"])
