"""Medusa's heads, trained beside a frozen target, or with one that learns low-rank changes (Medusa-2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block
from jax_smash.checkpoints.adapter import read_adapter
from jax_smash.checkpoints.medusa import FILES, save_medusa
from jax_smash.models.depth import hidden_without_cache
from jax_smash.models.medusa import Medusa, abstract_medusa, random_medusa
from jax_smash.models.transformer import Transformer, abstract_params
from jax_smash.objectives import summed_cross_entropy, summed_divergence
from jax_smash.sharding import place
from train.data.rows import Batch
from train.parts.adapter import write_adapter
from train.parts.drafter.base import head_rows
from train.parts.drafter.beside import BesideTarget
from train.parts.drafter.card import drafter_card
from train.parts.drafter.medusa_settings import MedusaSettings
from train.parts.drafter.objective import (
    CHUNK_OF_DRAFTER,
    Drafted,
    Guesses,
    Vocabulary,
    behind,
    cast,
    drafted,
    kept_likeliest,
    read_by_target,
    said_by,
    tally,
)
from train.parts.language_model.objective import CHUNK
from train.parts.lora import Lora, first_lora, merged
from train.parts.part import Ended, Shapes
from train.run.frozen import Frozen
from train.run.step import STEP, Objective, Tally

ADAPTER = "adapter"
"""Folder of what a target learned, in that of its heads."""


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
        heads = abstract_medusa(self.settings.medusa)[1]
        return Shapes({"drafter": heads, **jax.eval_shape(self._changes)}, self.target_shapes)

    def begin(self, mesh: Mesh) -> dict[str, Any]:
        """Returns blocks of 0, and rows that are the target's: every head says at first what the target's own says."""
        settings, config = self.settings, self.settings.medusa
        params: Any = random_medusa(config, settings.seed)[1]
        if config.own_rows:
            rows = head_rows(self.base, np.arange(config.vocab_size))
            for head in range(config.num_heads):
                # Training consumes weights, so each head has an array of its own.
                params["heads"][head]["head"].set_value(jnp.array(rows, copy=True))
        return place({"drafter": params, **self._changes()}, mesh)

    def _changes(self) -> dict[str, Lora]:
        """Returns the target's changes, which change nothing yet; none where it stays as it is."""
        settings = self.settings
        if settings.base == "frozen":
            return {}
        return {"lora": first_lora(self.target_shapes["base"], settings.rank, settings.seed, settings.targets)}

    def optimiser(self) -> optax.GradientTransformation:
        """Returns the optimiser of the heads, and of the target's changes where it learns."""
        return self.settings.transformation()

    def _objective(self, settings: MedusaSettings) -> Objective:
        make = medusa_objective if settings.base == "frozen" else joint_objective
        return make(abstract_params(settings.model)[0], settings, self.tokens)

    def measured(self) -> Objective:
        """Returns what exported weights are measured by: in float32, beside the target as it was."""
        settings = self.settings.measured()
        if settings.base == "frozen":
            return self._objective(settings)
        return joint_objective(abstract_params(settings.model)[0], settings, self.tokens, compared=True)

    def stored(self, trained: dict[str, Any], frozen: Frozen | None) -> dict[str, Any]:
        """Returns the heads rounded to bfloat16, and the target's changes as they are."""
        return trained | super().stored({"drafter": trained["drafter"]}, frozen)

    def save(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None) -> None:
        """Writes what `--method medusa --drafter FOLDER` reads, bound to the target's weights.

        The changes of a target that learned are an adapter in it, and the heads are bound to the changed weights.
        """
        settings, mark = self.settings, frozen.fingerprints["base"]
        if settings.base == "lora":
            (folder / ADAPTER).mkdir()
            write_adapter(folder / ADAPTER, self.base.folder, settings.model, stored["lora"], settings.alpha)
            mark = self.base.fingerprint(read_adapter(folder / ADAPTER))
        save_medusa(
            folder,
            settings.medusa,
            stored["drafter"],
            base_fingerprint=mark,
            tokens=self.said,
            trained_length=settings.length,
        )

    def card(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None, ended: Ended) -> str:
        """Returns the card, with held-out accuracies of the stored weights."""
        settings, config = self.settings, self.settings.medusa
        about = {
            "Heads": f"{config.num_heads}, each of {config.blocks} residual blocks",
            "Rows of tokens": "each head's own" if config.own_rows else "the target's",
            **self.said_told,
            "A head counts": f"{settings.head_decay:g} of the one before it",
        }
        model = "TARGET"
        if settings.base == "lora":
            model = f"FOLDER/{ADAPTER}"
            before, after = (ended.means[name] for name in ("base_loss_before", "base_loss"))
            about |= {
                "Trained with the target": f"low-rank changes of {', '.join(settings.targets)}, rank {settings.rank}, "
                f"alpha {settings.alpha:g}, kept in `{ADAPTER}`; learned from step {settings.heads_alone} on, at "
                f"{settings.base_rate:g} of the heads' learning rate",
                "The target's own held-out loss": f"{before:.4f} nats a token before, {after:.4f} now: it says other "
                "text than before",
            }
        return drafter_card(
            settings,
            ended,
            title="Medusa's heads",
            about=about,
            command=f"jax-smash generate --method medusa --drafter FOLDER --model {model}",
            base_fingerprint=FILES.read(folder).base_fingerprint,
            depths=config.num_heads,
            left_out=self.left_out,
        )


def medusa_objective(
    target: nnx.GraphDef,
    settings: MedusaSettings,
    tokens: Int[np.ndarray, "X"] | None = None,
    *,
    chunk: int = CHUNK_OF_DRAFTER,
) -> Objective:
    """Returns the heads' cross-entropy of the text's own later tokens, in nats, over rows of replies.

    Equivalent formula: Σ_h decay^h Σ_t w_t · −log q_h(token t), q_h what head h says h + 2 tokens before.

    Source: Cai et al. 2024, "Medusa", section 2.2.1 (Medusa-1). Differs: the mean is over the entries of all heads by
    their weights, where the paper adds up 0.2 times the means of the heads.

    Args:
      target: structure of the target.
      settings: of the run.
      tokens: that heads can say, in rising order; None for all.
      chunk: entries whose logits are in memory at once.
    """
    decay, structure = _decay(settings), abstract_medusa(settings.medusa)[0]
    vocabulary = Vocabulary(tokens, settings.model.vocab_size)

    def objective(params: Any, batch: Batch) -> tuple[Array, Tally]:
        model: Transformer = nnx.merge(target, cast(params["base"], settings))
        heads: Medusa = nnx.merge(structure, cast(params["drafter"], settings))
        hidden, _ = read_by_target(model, batch, settings)
        found = _said_by_heads(heads, model, hidden, batch, vocabulary, chunk, kept_likeliest(batch))
        return jnp.sum(decay * found.loss), tally(found, decay)

    return objective


def joint_objective(
    target: nnx.GraphDef,
    settings: MedusaSettings,
    tokens: Int[np.ndarray, "X"] | None = None,
    *,
    compared: bool = False,
    chunk: int = CHUNK_OF_DRAFTER,
) -> Objective:
    """Returns the loss of the heads and of the target that learns with them, in nats, over rows of replies.

    Equivalent formula: Σ_t w_t (base_weight · l(t) + heads_weight · Σ_h decay^h · −log q_h(token t)), l(t) the target's
    −log q(token t), or what its prediction there lost of the one that it made before it changed, as a divergence.

    In training, heads_weight rises as sin(π/2 · step / heads_ramp) up to that step.

    Source: Cai et al. 2024, "Medusa", section 2.2.2 (Medusa-2), and 2.3.2 of the divergence (self-distillation); the
    rise is the published program's. Differs: means are over the targets of the text, where the paper adds up the means
    of the heads; no dropout.

    Args:
      target: structure of the target.
      settings: of the run.
      tokens: that heads can say, in rising order; None for all.
      compared: tell the loss of the target before it changed too, `base_loss_before`.
      chunk: entries whose logits are in memory at once.
    """
    decay, structure = _decay(settings), abstract_medusa(settings.medusa)[0]
    vocabulary = Vocabulary(tokens, settings.model.vocab_size)

    def objective(params: Any, batch: Batch) -> tuple[Array, Tally]:
        model: Transformer = nnx.merge(target, cast(changed(params, settings), settings))
        heads: Medusa = nnx.merge(structure, cast(params["drafter"], settings))
        block = Block.causal(batch.segments > 0, batch.segments)
        inputs, layers = model.embed(batch.tokens), {"remat": settings.remat, "scan": settings.scan}
        hidden = hidden_without_cache(model, inputs, batch.positions, block, **layers)
        found = _said_by_heads(heads, model, hidden, batch, vocabulary, chunk)
        told = tally(found, decay)
        means, counted = dict(told.means), (hidden, batch.targets, batch.weights)
        if settings.base_labels == "text":
            lost, count = summed_cross_entropy(model.unembed, *counted, chunk=CHUNK)
        else:
            old, was = _before(target, params, batch, settings)
            lost = summed_divergence(old.unembed, was, model.unembed, hidden, batch.weights, chunk=CHUNK)
            count = jnp.sum(batch.weights)
        means["base_loss"] = (lost, count)
        if compared:
            old, was = _before(target, params, batch, settings)
            means["base_loss_before"] = summed_cross_entropy(old.unembed, was, *counted[1:], chunk=CHUNK)
        of_heads = jnp.sum(decay * found.loss)
        heads_weight = jnp.float32(settings.heads_weight) * _risen(params, settings)
        loss = jnp.float32(settings.base_weight) * lost + heads_weight * of_heads
        return loss, Tally(count=count, means=means)

    return objective


def changed(params: Mapping[str, Any], settings: MedusaSettings) -> nnx.State:
    """Returns the target's weights with its changes in them, in float32: each matrix plus alpha / rank · a · b.

    In fewer bits most of a change would be rounded away before it is added.

    Args:
      params: by role, `base` and `lora`.
      settings: of the run.
    """
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), jax.lax.stop_gradient(params["base"]))
    return merged(wide, params["lora"], settings.alpha / settings.rank)


def _risen(params: Mapping[str, Any], settings: MedusaSettings) -> Float[Array, ""]:
    """Returns the share of their weight that the heads have come to; all of it in evaluations."""
    if not settings.heads_ramp or STEP not in params:
        return jnp.float32(1)
    share = params[STEP].astype(jnp.float32) / settings.heads_ramp
    return jnp.sin(jnp.float32(jnp.pi / 2) * jnp.minimum(share, 1))


def _before(
    target: nnx.GraphDef, params: Mapping[str, Any], batch: Batch, settings: MedusaSettings
) -> tuple[Transformer, Float[Array, "B T D"]]:
    """Returns the target as it was, and its hidden vectors."""
    old: Transformer = nnx.merge(target, cast(jax.lax.stop_gradient(params["base"]), settings))
    return old, read_by_target(old, batch, settings)[0]


def _decay(settings: MedusaSettings) -> Float[np.ndarray, "H"]:
    """Returns what each head counts."""
    return np.power(np.float32(settings.head_decay), np.arange(settings.num_heads, dtype=np.float32))


def _said_by_heads(
    heads: Medusa,
    model: Transformer,
    hidden: Float[Array, "B T D"],
    batch: Batch,
    vocabulary: Vocabulary,
    chunk: int,
    likeliest: Int[Array, "B T"] | None = None,
) -> Drafted:
    """Returns what the heads' guesses of the text's own later tokens were worth."""
    made, seen = behind(heads.vectors(hidden), batch.segments)

    def by_own_rows(vectors: Float[Array, "B C S D"]) -> Float[Array, "B C S V"]:
        return jnp.moveaxis(heads.unembed(jnp.moveaxis(vectors, 2, 0), model), 0, 2)

    unembed = by_own_rows if heads.config.own_rows else said_by(model, vocabulary)
    given = {"weights": batch.weights, "labels": batch.targets, "likeliest": likeliest}
    guesses = Guesses(hidden=hidden, made=made, seen=seen, **given)
    return drafted(model, guesses, unembed, vocabulary, chunk=chunk)
