"""A Chimera drafter, trained beside a frozen target."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Int

from jax_smash.checkpoints.chimera import save_chimera
from jax_smash.models.chimera import Chimera, abstract_chimera, random_chimera
from jax_smash.models.transformer import Transformer, abstract_params
from jax_smash.sharding import place
from train.data.rows import Batch
from train.parts.drafter.base import final_scale, first_layer
from train.parts.drafter.beside import BesideTarget
from train.parts.drafter.card import drafter_card
from train.parts.drafter.lagged import lagged, moved, packed_codes, read_by_target_before
from train.parts.drafter.objective import (
    CHUNK_OF_DRAFTER,
    Guesses,
    Vocabulary,
    cast,
    drafted,
    kept_likeliest,
    read_by_target,
    said_by,
    tally,
)
from train.parts.drafter.settings import ChimeraSettings
from train.parts.part import Ended, Shapes
from train.run.frozen import Frozen
from train.run.start import quick_to_learn
from train.run.step import Objective, Tally


@dataclasses.dataclass(frozen=True)
class ChimeraPart(BesideTarget):
    """Chimera's modules for a target.

    Attributes:
      settings: of the run.
    """

    settings: ChimeraSettings

    kind = ChimeraSettings

    def shapes(self) -> Shapes:
        """Returns those of the drafter's weights and the target's; without files the target is bfloat16."""
        return Shapes({"drafter": abstract_chimera(self.settings.chimera)[1]}, self.target_shapes)

    def begin(self, mesh: Mesh) -> dict[str, Any]:
        """Returns random weights, but for the last norm, which is the target's, and the heads, which are 0."""
        settings, config = self.settings, self.settings.chimera
        params: Any = quick_to_learn(random_chimera(config, settings.seed)[1], config.layer, settings.seed)
        if config.encodes_text:
            params["grams"]["layer"] = first_layer(self.base, params["grams"]["layer"])
        # Training consumes weights, and these lie in NumPy's memory.
        params["final_norm"]["scale"].set_value(jnp.array(final_scale(self.base), copy=True))
        return place({"drafter": params}, mesh)

    def _objective(self, settings: ChimeraSettings) -> Objective:
        return chimera_objective(abstract_params(settings.model)[0], settings, self.tokens)

    def save(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None) -> None:
        """Writes what `--method chimera --drafter FOLDER` reads, bound to the target's weights."""
        mark = frozen.fingerprints["base"]
        save_chimera(
            folder,
            self.settings.chimera,
            stored["drafter"],
            base_fingerprint=mark,
            tokens=self.said,
            trained_length=self.settings.length,
        )

    def card(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None, ended: Ended) -> str:
        """Returns the card, with held-out accuracies of the stored weights."""
        settings, config = self.settings, self.settings.chimera
        labels = {"text": "the text's own", "target": "what the target predicts"}
        return drafter_card(
            settings,
            ended,
            title="A Chimera drafter",
            about={
                **self.said_told,
                "Grams": _encoder_told(settings),
                "Layer": f"{config.num_heads} heads, MLP of {config.mlp_width}",
                "Heads": f"{config.decoding_heads}, each counting {settings.head_decay:g} of the one before it"
                + ("" if config.residual_heads else "; none reads the target's last state"),
                "Weights": f"{sum(x.size for x in jax.tree.leaves(stored)):,}",
                "Labels": f"{labels[settings.labels]}, and {settings.distillation:g} times the squared distance of "
                "the layer's states from the target's",
                "Drafts up to position": f"{config.max_positions:,}",
            },
            command="jax-smash generate --method chimera --drafter FOLDER --model TARGET",
            base_fingerprint=frozen.fingerprints["base"],
            depths=config.decoding_heads,
            left_out=self.left_out,
        )


def _encoder_told(settings: ChimeraSettings) -> str:
    """Returns what stands for grams in the card."""
    if not settings.chimera.encodes_text:
        return f"{settings.gram} tokens, encoder {settings.gram_encoder}"
    changed = "as it was" if settings.encoder_frozen else "trained"
    return f"none: the target's first layer, {changed}, encodes all of the text. No method drafts with it"


def chimera_objective(
    target: nnx.GraphDef,
    settings: ChimeraSettings,
    tokens: Int[np.ndarray, "X"] | None = None,
    *,
    chunk: int = CHUNK_OF_DRAFTER,
) -> Objective:
    """Returns the heads' cross-entropy, in nats, and the distance of the layer's states from the target's.

    Equivalent formula: Σ_h decay^h Σ_t w_t (−Σ_x p_t(x) log q_h,t(x) + distillation · mean((full_h,t − hidden_t)²)),
    q_h,t what head h says behind token t, full_h,t what the layer made of it, hidden_t the target's state of it, and
    p_t what the target predicts there, or the text's own next token.

    Source: Zeng et al. 2024, "Chimera", section 4.2. Differs: the mean is over the entries of all heads by their
    weights, where the paper adds up the means of the heads; and every head's states are to meet the target's.

    Args:
      target: structure of the target.
      settings: of the run.
      tokens: that the drafter can say, in rising order; None for all.
      chunk: entries whose logits are in memory at once.
    """
    heads = settings.decoding_heads
    decay = np.power(np.float32(settings.head_decay), np.arange(heads, dtype=np.float32))
    vocabulary = Vocabulary(tokens, settings.model.vocab_size)
    structure, _ = abstract_chimera(settings.chimera)

    def objective(params: Any, batch: Batch) -> tuple[Array, Tally]:
        model: Transformer = nnx.merge(target, cast(jax.lax.stop_gradient(params["base"]), settings))
        drafter: Chimera = nnx.merge(structure, cast(params["drafter"], settings))
        hidden, _ = read_by_target(model, batch, settings)
        codes = packed_codes(drafter, model, batch)
        codes = jax.lax.stop_gradient(codes) if settings.encoder_frozen else codes
        full = lagged(drafter, hidden, codes, batch.positions, batch.segments)
        made = [drafter.vectors(moved(hidden, h + 1), full[h], h) for h in range(heads)]

        guesses = Guesses(
            hidden=hidden,
            made=jnp.stack(made, axis=2),
            seen=read_by_target_before(batch.segments, heads),
            weights=batch.weights,
            labels=batch.targets if settings.labels == "text" else None,
            likeliest=kept_likeliest(batch),
        )
        found = drafted(model, guesses, said_by(model, vocabulary), vocabulary, chunk=chunk)
        away = jnp.mean(jnp.square(full.astype(jnp.float32) - hidden.astype(jnp.float32)[None]), axis=-1)
        counted = batch.weights[None] * jnp.moveaxis(guesses.seen, 2, 0).astype(jnp.float32)
        distance = jnp.sum(counted * away, axis=(1, 2))
        told = tally(found, decay)
        means = {f"distance_{h + 1}": (distance[h], found.tried[h]) for h in range(heads)}
        loss = jnp.sum(decay * (found.loss + jnp.float32(settings.distillation) * distance))
        return loss, Tally(count=told.count, means={**told.means, **means})

    return objective
