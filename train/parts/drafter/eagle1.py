"""An EAGLE-1 drafter, trained beside a frozen target."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from jax_smash.checkpoints.eagle1 import save_eagle1
from jax_smash.models.eagle1 import Eagle1, abstract_eagle1, random_eagle1
from jax_smash.models.transformer import Transformer, abstract_params
from jax_smash.sharding import place
from train.data.rows import Batch
from train.parts.drafter.card import drafter_card
from train.parts.drafter.objective import (
    CHUNK_OF_DRAFTER,
    Guesses,
    Vocabulary,
    behind,
    cast,
    drafted,
    kept_likeliest,
    read_by_target,
    said_by,
    step_shares,
    tally,
)
from train.parts.drafter.settings import Eagle1Settings
from train.parts.drafter.stepped import SteppedPart
from train.parts.drafter.unrolled import unrolled
from train.parts.part import Ended, Shapes
from train.run.frozen import Frozen
from train.run.start import quick_to_learn
from train.run.step import Objective, Tally

NOISE_LENGTH = 512
"""Tokens of a document whose features are moved by just what is asked for; those of longer ones by less."""


@dataclasses.dataclass(frozen=True)
class Eagle1Part(SteppedPart):
    """EAGLE-1's layer for a target.

    Attributes:
      settings: of the run.
    """

    settings: Eagle1Settings

    kind = Eagle1Settings

    def shapes(self) -> Shapes:
        """Returns those of the drafter's weights and the target's; without files the target is bfloat16."""
        return Shapes({"drafter": abstract_eagle1(self.settings.eagle1)[1]}, self.target_shapes)

    def begin(self, mesh: Mesh) -> dict[str, Any]:
        """Returns random weights."""
        settings, config = self.settings, self.settings.eagle1
        params = quick_to_learn(random_eagle1(config, settings.seed)[1], config.layer, settings.seed)
        return place({"drafter": params}, mesh)

    def _objective(self, settings: Eagle1Settings, depths: int | None = None) -> Objective:
        return eagle1_objective(abstract_params(settings.model)[0], settings, self.tokens, depths=depths)

    def evaluated(self) -> Objective:
        """Returns the objective without noise, which tells of all depths."""
        return self._objective(dataclasses.replace(self.settings, noise=0.0), self.depths)

    def save(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None) -> None:
        """Writes what `--method eagle --drafter FOLDER` reads, bound to the target's weights."""
        mark = frozen.fingerprints["base"]
        save_eagle1(
            folder,
            self.settings.eagle1,
            stored["drafter"],
            base_fingerprint=mark,
            tokens=self.said,
            trained_length=self.settings.length,
        )

    def card(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None, ended: Ended) -> str:
        """Returns the card, with held-out accuracies of the stored weights."""
        settings, config = self.settings, self.settings.eagle1
        return drafter_card(
            settings,
            ended,
            title="An EAGLE-1 drafter",
            about={
                **self.said_told,
                "Layer": f"{config.num_heads} heads, MLP of {config.mlp_width}",
                "Weights": f"{sum(x.size for x in jax.tree.leaves(stored)):,}",
                "Loss": f"{settings.feature_share:g} of the features' distance, {settings.prediction_share:g} of the "
                "cross-entropy",
                "Noise": f"{settings.noise:g}",
                "Training-time test": f"{settings.test_steps} steps, each counting {settings.step_decay:g} of the last",
                "Drafts up to position": f"{config.max_positions:,}",
            },
            command="jax-smash generate --method eagle --drafter FOLDER --model TARGET",
            base_fingerprint=frozen.fingerprints["base"],
            depths=self.depths,
            left_out=self.left_out,
        )


def eagle1_objective(
    target: nnx.GraphDef,
    settings: Eagle1Settings,
    tokens: Int[np.ndarray, "X"] | None = None,
    *,
    depths: int | None = None,
    chunk: int = CHUNK_OF_DRAFTER,
) -> Objective:
    """Returns the distance of the drafter's features from the target's, and its cross-entropy, over rows of replies.

    Equivalent formula: Σ_s decay^s Σ_t w_t (a · mean(smooth L1 of f_s,t − hidden_t) + b · −Σ_x p_t(x) log q_s,t(x)),
    f_s,t what step s guesses of the target's hidden state of token t, q_s,t and p_t what the target's head says of
    both among the tokens that the drafter can say, a the feature share and b the prediction share. The cross-entropy
    is summed over targets that it can say, the distance over all.

    Source: Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", section 4.2; steps
    behind the first as in Zhang et al. 2024, "Learning Harmonized Representations for Speculative Sampling".
    Differs: an entry counts where the target's next token is learned, where the published program counts the tokens of
    replies themselves; the mean is over the entries of all rows, not of each.

    Args:
      target: structure of the target.
      settings: of the run.
      tokens: that the drafter can say, in rising order; None for all.
      depths: steps that are told, at least as many as are trained, which is None. Further ones count 0 in the loss.
      chunk: entries whose logits are in memory at once.
    """
    decay = step_shares(settings, depths)
    shares = np.float32(settings.feature_share), np.float32(settings.prediction_share)
    vocabulary = Vocabulary(tokens, settings.model.vocab_size)
    structure, _ = abstract_eagle1(settings.eagle1)

    def objective(params: Any, batch: Batch) -> tuple[Array, Tally]:
        model: Transformer = nnx.merge(target, cast(jax.lax.stop_gradient(params["base"]), settings))
        drafter: Eagle1 = nnx.merge(structure, cast(params["drafter"], settings))
        hidden, _ = read_by_target(model, batch, settings)
        features = noised(hidden, batch, settings.noise, settings.seed)
        vectors = model.embed(batch.targets)
        made = unrolled(drafter, features, vectors, batch.positions, batch.segments, len(decay))
        aligned, seen = behind(made, batch.segments)

        guesses = Guesses(
            hidden=hidden, made=aligned, seen=seen, weights=batch.weights, likeliest=kept_likeliest(batch)
        )
        found = drafted(model, guesses, said_by(model, vocabulary), vocabulary, chunk=chunk)
        missed = aligned.astype(jnp.float32) - hidden.astype(jnp.float32)[:, :, None]
        away = jnp.mean(optax.losses.huber_loss(missed), axis=-1)
        distance = jnp.sum(batch.weights[..., None] * seen.astype(jnp.float32) * away, axis=(0, 1))
        told = tally(found, decay)
        means = {f"distance_{s + 1}": (distance[s], found.tried[s]) for s in range(len(decay))}
        loss = jnp.sum(decay * (shares[0] * distance + shares[1] * found.loss))
        return loss, Tally(count=told.count, means={**told.means, **means})

    return objective


def noised(hidden: Float[Array, "B T D"], batch: Batch, noise: float, seed: int) -> Float[Array, "B T D"]:
    """Returns features moved by U(−½, ½) · noise · 512 / n, n being the tokens of the entry's document in the row.

    A row's noise depends on its tokens and the seed alone, so that a run that goes on learns the same.

    Source: the program of Li et al. 2024; the paper, section 4.2, has U(−0.1, 0.1).
    """
    if not noise:
        return hidden

    def of_row(tokens: Array, segments: Array) -> tuple[Array, Array]:
        # A digest of the row: each place counts otherwise.
        place = 2 * jnp.arange(len(tokens), dtype=jnp.uint32) + 1
        digest = jnp.sum(tokens.astype(jnp.uint32) * place, dtype=jnp.uint32)
        key = jax.random.fold_in(jax.random.key(seed), digest)
        count = jnp.zeros((len(tokens) + 1,), jnp.float32).at[segments].add(1.0)[segments]
        return jax.random.uniform(key, (len(tokens), hidden.shape[2]), jnp.float32, -0.5, 0.5), count

    drawn, count = jax.vmap(of_row)(jnp.asarray(batch.tokens), jnp.asarray(batch.segments))
    moved = drawn * (jnp.float32(noise * NOISE_LENGTH) / count)[..., None]
    return hidden + moved.astype(hidden.dtype)
