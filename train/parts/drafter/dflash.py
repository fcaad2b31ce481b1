"""A DFlash drafter, trained beside a frozen target."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from jax_smash.checkpoints.dflash import save_dflash
from jax_smash.models.dflash import DFlash, abstract_dflash, random_dflash
from jax_smash.models.transformer import Transformer, abstract_params
from jax_smash.sharding import place
from train.data.rows import Batch
from train.data.states import StateBatch
from train.parts.drafter.anchors import Anchors, drawn_anchors, filled_blocks
from train.parts.drafter.base import final_scale
from train.parts.drafter.beside import BesideTarget
from train.parts.drafter.card import drafter_card
from train.parts.drafter.objective import (
    CHUNK_OF_DRAFTER,
    Drafted,
    Guesses,
    Vocabulary,
    cast,
    drafted,
    kept_likeliest,
    read_by_target,
    said_by,
    tally,
)
from train.parts.drafter.settings import DFlashSettings
from train.parts.part import Ended, Shapes
from train.run.frozen import Frozen
from train.run.start import quick_to_learn
from train.run.step import Objective, Tally


@dataclasses.dataclass(frozen=True)
class DFlashPart(BesideTarget):
    """DFlash's layers for a target.

    Attributes:
      settings: of the run.
    """

    settings: DFlashSettings

    kind = DFlashSettings

    def shapes(self) -> Shapes:
        """Returns those of the drafter's weights and the target's; without files the target is bfloat16."""
        return Shapes({"drafter": abstract_dflash(self.settings.dflash)[1]}, self.target_shapes)

    def begin(self, mesh: Mesh) -> dict[str, Any]:
        """Returns random weights, but for the last norm, which is the target's."""
        settings, config = self.settings, self.settings.dflash
        params: Any = quick_to_learn(random_dflash(config, settings.seed)[1], config.layers, settings.seed)
        # Training consumes weights, and these lie in NumPy's memory.
        params["final_norm"]["scale"].set_value(jnp.array(final_scale(self.base), copy=True))
        return place({"drafter": params}, mesh)

    def _objective(self, settings: DFlashSettings) -> Objective:
        return dflash_objective(abstract_params(settings.model)[0], settings, self.tokens)

    def save(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None) -> None:
        """Writes what `--method dflash --drafter FOLDER` reads, bound to the target's weights."""
        mark = frozen.fingerprints["base"]
        save_dflash(
            folder,
            self.settings.dflash,
            stored["drafter"],
            base_fingerprint=mark,
            tokens=self.said,
            trained_length=self.settings.length,
        )

    def card(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None, ended: Ended) -> str:
        """Returns the card, with held-out accuracies of the stored weights."""
        settings, config = self.settings, self.settings.dflash
        labels = {"text": "the text's own", "target": "what the target predicts"}
        return drafter_card(
            settings,
            ended,
            title="A DFlash drafter",
            about={
                **self.said_told,
                "Taps": f"{', '.join(map(str, config.taps))}: what enters these layers of the target (from 0)",
                "Layers": f"{config.num_layers} of {config.num_heads} heads, MLP of {config.mlp_width}",
                "Blocks": f"{config.block_size} entries, place k counting exp(−k / {settings.decay_places:g}); "
                f"{settings.anchors} a row at most",
                "Masked tokens": "a vector of its own" if config.mask_token is None else f"token {config.mask_token}",
                "Window": f"{config.window} positions" if config.window else "none",
                "Weights": f"{sum(x.size for x in jax.tree.leaves(stored)):,}",
                "Labels": labels[settings.labels],
                "Drafts up to position": f"{config.max_positions:,}",
            },
            command="jax-smash generate --method dflash --drafter FOLDER --model TARGET",
            base_fingerprint=frozen.fingerprints["base"],
            depths=config.block_size - 1,
            left_out=self.left_out,
        )


def dflash_objective(
    target: nnx.GraphDef,
    settings: DFlashSettings,
    tokens: Int[np.ndarray, "X"] | None = None,
    *,
    chunk: int = CHUNK_OF_DRAFTER,
) -> Objective:
    """Returns the cross-entropy of the masked tokens of random blocks, in nats, over rows of replies.

    Equivalent formula: Σ_a Σ_k exp(−k / decay_places) w_{a+k} (−Σ_x p_{a+k}(x) log q_{a,k}(x)) over anchors a and the
    masked places k from 0 of their blocks, q_{a,k} what the drafter says there, p_{a+k} what the target predicts behind
    token a + k, or the text's own next token.

    Source: Chen et al. 2026, "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036).
    Differs: the mean is over all places by what they count.

    Args:
      target: structure of the target.
      settings: of the run.
      tokens: that the drafter can say, in rising order; None for all.
      chunk: entries whose logits are in memory at once.
    """
    places = settings.dflash.block_size - 1
    decay = np.exp(-np.arange(places, dtype=np.float32) / np.float32(settings.decay_places))
    vocabulary = Vocabulary(tokens, settings.model.vocab_size)
    structure, _ = abstract_dflash(settings.dflash)

    def objective(params: Any, batch: Batch) -> tuple[Array, Tally]:
        model: Transformer = nnx.merge(target, cast(jax.lax.stop_gradient(params["base"]), settings))
        drafter: DFlash = nnx.merge(structure, cast(params["drafter"], settings))
        hidden, taps = read_by_target(model, batch, settings)
        anchors = drawn_anchors(batch, settings.anchors, settings.seed)
        made = filled_blocks(drafter, model, taps, batch, anchors)

        unembed = said_by(model, vocabulary)

        def of_place(place: Int[Array, ""], made: Float[Array, "B A D"]) -> Drafted:
            guesses = guesses_at(place, made, hidden, batch, anchors, of_text=settings.labels == "text")
            return drafted(model, guesses, unembed, vocabulary, chunk=chunk)

        every = (jnp.arange(places, dtype=jnp.int32), jnp.moveaxis(made, 2, 0))
        found = jax.tree.map(lambda x: x[:, 0], jax.lax.map(lambda x: of_place(*x), every))
        return jnp.sum(decay * found.loss), tally(found, decay)

    return objective


def guesses_at(
    place: Int[Array, ""],
    made: Float[Array, "B A D"],
    hidden: Float[Array, "B T D"],
    batch: Batch | StateBatch,
    anchors: Anchors,
    *,
    of_text: bool,
) -> Guesses:
    """Returns what is guessed at one masked place of all blocks.

    Args:
      place: from 0, the one behind the anchor.
      made: what guesses it.
      hidden: of the target.
      batch: the rows.
      anchors: of the blocks.
      of_text: the text's own token is to be guessed.
    """
    length = hidden.shape[1]
    entry = anchors.entry + place
    within = jnp.minimum(entry, length - 1)

    def at(x: Array) -> Array:
        return jnp.take_along_axis(x, within, axis=1)

    likeliest = kept_likeliest(batch)
    same = at(batch.segments) == jnp.take_along_axis(batch.segments, anchors.entry, axis=1)
    seen = anchors.there & (entry < length) & same
    return Guesses(
        hidden=jnp.take_along_axis(hidden, within[:, :, None], axis=1),
        made=made[:, :, None],
        seen=seen[:, :, None],
        weights=at(batch.weights),
        labels=at(batch.targets) if of_text else None,
        likeliest=None if likeliest is None else at(likeliest),
    )
