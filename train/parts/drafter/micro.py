"""HAMburger's micro-step decoder, trained beside a frozen base as a drafter: tokens keep a slot each."""

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

from jax_smash.checkpoints.smasher import save_smasher
from jax_smash.models.transformer import Transformer, abstract_params
from jax_smash.sharding import place
from jax_smash.smash.micro_decoder import tap_prefix
from jax_smash.smash.options import SmashOptions
from jax_smash.smash.smasher import Smasher, abstract_smasher, random_smasher
from train.data.rows import Batch
from train.pack import file_sha256
from train.parts.drafter.beside import BesideTarget
from train.parts.drafter.card import drafter_card
from train.parts.drafter.objective import (
    CHUNK_OF_DRAFTER,
    Guesses,
    Vocabulary,
    behind,
    cast,
    drafted_and_right,
    kept_likeliest,
    read_by_target,
    said_by,
    tally,
)
from train.parts.drafter.settings import MicroSettings
from train.parts.part import Ended, Shapes
from train.run.frozen import Frozen
from train.run.start import quick_to_learn
from train.run.step import Objective, Tally

CONFIDENCE = 0.5
"""Of the stop head, from which a draft of trained modules goes on, unless a user says otherwise."""


@dataclasses.dataclass(frozen=True)
class MicroPart(BesideTarget):
    """HAMburger's micro-step decoder and stop head for a base that reads every token in a slot of its own.

    Attributes:
      settings: of the run.
    """

    settings: MicroSettings

    kind = MicroSettings

    def shapes(self) -> Shapes:
        """Returns those of the modules' weights and the base's; without files the base is bfloat16."""
        settings = self.settings
        return Shapes({"drafter": abstract_smasher(settings.model, settings.smash)[1]}, self.target_shapes)

    def begin(self, mesh: Mesh) -> dict[str, Any]:
        """Returns random weights, by which the decoder's layers are the identity."""
        settings = self.settings
        params = random_smasher(settings.model, settings.smash, settings.seed)[1]
        return place({"drafter": quick_to_learn(params, settings.model, settings.seed)}, mesh)

    def _objective(self, settings: MicroSettings) -> Objective:
        return micro_objective(abstract_params(settings.model)[0], settings, self.tokens)

    def save(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None) -> None:
        """Writes what `--method hamburger --modules FOLDER` reads, bound to the base's weights, for mode exact."""
        settings = self.settings
        tokenizer = file_sha256(self.base.folder / "tokenizer.json")
        head = str(settings.head_size) if settings.head_size else "full"
        save_smasher(
            folder,
            dataclasses.replace(settings.smash, tokenizer_sha256=tokenizer),
            stored["drafter"],
            token_counts=self.counts,
            options=SmashOptions(mode="exact", confidence=CONFIDENCE, token_confidence=0.0, micro_head=head),
            base_fingerprint=frozen.fingerprints["base"],
        )

    def card(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None, ended: Ended) -> str:
        """Returns the card, with held-out accuracies of the stored weights."""
        settings, config = self.settings, self.settings.smash
        return drafter_card(
            settings,
            ended,
            title="HAMburger's micro-step decoder, as a drafter",
            about={
                **self.said_told,
                "Decoder": f"{config.micro_layers} layers of the base's shape over the outputs of its layers "
                f"{', '.join(map(str, config.tapped_layers))} (from 0)",
                "Tokens of a draft": f"at most {config.micro_steps - 1}",
                "The stop head": f"counts {settings.stop_weight:g}; a draft goes on where it is at least "
                f"{CONFIDENCE:g} sure",
                "Weights": f"{sum(x.size for x in jax.tree.leaves(stored)):,}",
            },
            command="jax-smash generate --method hamburger --smash-mode exact --modules FOLDER --model BASE",
            base_fingerprint=frozen.fingerprints["base"],
            depths=config.micro_steps - 1,
            left_out=self.left_out,
        )


def micro_objective(
    target: nnx.GraphDef,
    settings: MicroSettings,
    tokens: Int[np.ndarray, "X"] | None = None,
    *,
    chunk: int = CHUNK_OF_DRAFTER,
) -> Objective:
    """Returns the cross-entropy of the decoder's guesses against the base's predictions, in nats, over replies.

    Equivalent formula: Σ_s decay^s Σ_t w_t · −Σ_x p_t(x) log q_s(x), q_s what is guessed s + 2 tokens behind the last
    that the base has read, from its tapped layers there and the text's own tokens between. To it comes stop_weight
    times the binary cross-entropy of whether the guess is another token than the base's likeliest, by the stop head.

    Source: Liu and Zhang 2025, HAMburger, section 3. Differs: the base reads each token in a slot of its own, every
    token begins a group, and groups end where the decoder would be wrong, where the paper has a segmentation end them.

    Args:
      target: structure of the base.
      settings: of the run.
      tokens: that the decoder can say, in rising order; None for all.
      chunk: entries whose logits are in memory at once.
    """
    steps = settings.smash.micro_steps - 1
    decay = np.power(np.float32(settings.step_decay), np.arange(steps, dtype=np.float32))
    vocabulary = Vocabulary(tokens, settings.model.vocab_size)
    structure = abstract_smasher(settings.model, settings.smash)[0]

    def objective(params: Any, batch: Batch) -> tuple[Array, Tally]:
        model: Transformer = nnx.merge(target, cast(jax.lax.stop_gradient(params["base"]), settings))
        modules: Smasher = nnx.merge(structure, cast(params["drafter"], settings))
        hidden, taps = read_by_target(model, batch, settings)
        prefix = tap_prefix(settings.smash, taps, hidden, settings.model.num_layers)
        # What entry i guesses with: the text's tokens i + 1, i + 2, … one after another.
        vectors = model.embed(batch.targets)
        given = jnp.stack([_later(vectors, places) for places in range(steps)], axis=2)
        made = jnp.moveaxis(modules.micro_decoder.taught(prefix, given, remat=settings.remat), 2, 0)
        aligned, seen = behind(made, batch.segments)
        guesses = Guesses(
            hidden=hidden, made=aligned, seen=seen, weights=batch.weights, likeliest=kept_likeliest(batch)
        )
        found, right = drafted_and_right(model, guesses, said_by(model, vocabulary), vocabulary, chunk=chunk)
        told = tally(found, decay)
        loss, means = jnp.sum(decay * found.loss), dict(told.means)
        if settings.stop_weight:
            before = jnp.concatenate([hidden[None].astype(made.dtype), made[:-1]])
            logits = modules.stop_logits(before)[..., None]
            logits, _ = behind(logits, batch.segments)
            wrong = (~right).astype(jnp.float32)
            counted = batch.weights[..., None] * seen.astype(jnp.float32)
            lost = jnp.sum(counted * (jax.nn.softplus(logits[..., 0]) - wrong * logits[..., 0]))
            means["stop_loss"] = (lost, jnp.sum(counted))
            loss += jnp.float32(settings.stop_weight) * lost
        return loss, Tally(count=told.count, means=means)

    return objective


def _later(x: Float[Array, "B T D"], places: int) -> Float[Array, "B T D"]:
    """Returns what stands so many entries behind each; zeros where the row has ended."""
    return jnp.pad(x[:, places:], ((0, 0), (0, min(places, x.shape[1])), (0, 0)))
