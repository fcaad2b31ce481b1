"""Medusa's heads, trained beside a frozen target."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float

from jax_smash.checkpoints.medusa import save_medusa
from jax_smash.models.medusa import Medusa, abstract_medusa, random_medusa
from jax_smash.models.transformer import Transformer, abstract_params
from jax_smash.sharding import place
from train.data.rows import Batch
from train.parts.drafter.base import head_rows
from train.parts.drafter.beside import BesideTarget
from train.parts.drafter.card import drafter_card
from train.parts.drafter.objective import (
    CHUNK_OF_DRAFTER,
    Guesses,
    Vocabulary,
    behind,
    cast,
    drafted,
    read_by_target,
    tally,
)
from train.parts.drafter.settings import MedusaSettings
from train.parts.part import Ended, Shapes
from train.run.frozen import Frozen
from train.run.step import Objective, Tally


@dataclasses.dataclass(frozen=True)
class MedusaPart(BesideTarget):
    """Medusa's heads for a target.

    Attributes:
      settings: of the run.
    """

    settings: MedusaSettings

    kind = MedusaSettings

    def shapes(self) -> Shapes:
        """Returns those of the heads' weights and the target's; without files the target is bfloat16."""
        return Shapes({"drafter": abstract_medusa(self.settings.medusa)[1]}, self.target_shapes)

    def begin(self, mesh: Mesh) -> dict[str, Any]:
        """Returns blocks of 0, and rows that are the target's: every head says at first what the target's own says."""
        settings, config = self.settings, self.settings.medusa
        params = random_medusa(config, settings.seed)[1]
        if config.own_rows:
            rows = head_rows(self.base, np.arange(config.vocab_size))
            for head in range(config.num_heads):
                # Training consumes weights, so each head has an array of its own.
                params["heads"][head]["head"].set_value(jnp.array(rows, copy=True))
        return place({"drafter": params}, mesh)

    def _objective(self, settings: MedusaSettings) -> Objective:
        return medusa_objective(abstract_params(settings.model)[0], settings)

    def save(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None) -> None:
        """Writes what `--method medusa --drafter FOLDER` reads, bound to the target's weights."""
        mark = frozen.fingerprints["base"]
        save_medusa(folder, self.settings.medusa, stored["drafter"], base_fingerprint=mark)

    def card(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None, ended: Ended) -> str:
        """Returns the card, with held-out accuracies of the stored weights."""
        config = self.settings.medusa
        return drafter_card(
            self.settings,
            ended,
            title="Medusa's heads",
            about={
                "Heads": f"{config.num_heads}, each of {config.blocks} residual blocks",
                "Rows of tokens": "each head's own" if config.own_rows else "the target's",
                "A head counts": f"{self.settings.head_decay:g} of the one before it",
            },
            command="jax-smash generate --method medusa --drafter FOLDER --model TARGET",
            base_fingerprint=frozen.fingerprints["base"],
            depths=config.num_heads,
        )


def medusa_objective(target: nnx.GraphDef, settings: MedusaSettings, *, chunk: int = CHUNK_OF_DRAFTER) -> Objective:
    """Returns the heads' cross-entropy of the text's own later tokens, in nats, over rows of replies.

    Equivalent formula: Σ_h decay^h Σ_t w_t · −log q_h(token t), q_h what head h says h + 2 tokens before.

    Source: Cai et al. 2024, "Medusa", section 2.2.1 (Medusa-1). Differs: the mean is over the entries of all heads by
    their weights, where the paper adds up 0.2 times the means of the heads.

    Args:
      target: structure of the target.
      settings: of the run.
      chunk: entries whose logits are in memory at once.
    """
    decay = np.power(np.float32(settings.head_decay), np.arange(settings.num_heads, dtype=np.float32))
    vocabulary = Vocabulary(np.arange(settings.model.vocab_size), settings.model.vocab_size)
    structure, _ = abstract_medusa(settings.medusa)

    def objective(params: Any, batch: Batch) -> tuple[Array, Tally]:
        model: Transformer = nnx.merge(target, cast(params["base"], settings))
        heads: Medusa = nnx.merge(structure, cast(params["drafter"], settings))
        hidden, _ = read_by_target(model, batch, settings)
        made, seen = behind(heads.vectors(hidden), batch.segments)

        def unembed(vectors: Float[Array, "B C S D"]) -> Float[Array, "B C S V"]:
            return jnp.moveaxis(heads.unembed(jnp.moveaxis(vectors, 2, 0), model), 0, 2)

        guesses = Guesses(hidden=hidden, made=made, seen=seen, weights=batch.weights, labels=batch.targets)
        found = drafted(model, guesses, unembed, vocabulary, chunk=chunk)
        return jnp.sum(decay * found.loss), tally(found, decay)

    return objective
