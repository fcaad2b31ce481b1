"""An EAGLE-3 drafter, trained beside a frozen target."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from jax_smash.checkpoints.eagle import save_eagle
from jax_smash.models.eagle import abstract_eagle, random_eagle
from jax_smash.models.short_head import TokenIds
from jax_smash.models.transformer import abstract_params
from jax_smash.sharding import place
from train.parts.drafter.base import head_rows
from train.parts.drafter.card import drafter_card
from train.parts.drafter.objective import CHUNK_OF_DRAFTER, eagle_objective
from train.parts.drafter.settings import EagleSettings
from train.parts.drafter.stepped import SteppedPart
from train.parts.part import Ended, Shapes
from train.run.frozen import Frozen
from train.run.start import quick_to_learn
from train.run.step import Objective


@dataclasses.dataclass(frozen=True)
class EaglePart(SteppedPart):
    """EAGLE-3's layer for a target.

    Attributes:
      settings: of the run.
    """

    settings: EagleSettings

    kind = EagleSettings

    def shapes(self) -> Shapes:
        """Returns those of the drafter's weights and the target's; without files the target is bfloat16."""
        trained, _ = _trained(abstract_eagle(self.settings.eagle)[1])
        return Shapes({"drafter": trained}, self.target_shapes)

    def begin(self, mesh: Mesh) -> dict[str, Any]:
        """Returns random weights, but for the head: its rows are those of the target's."""
        settings, config = self.settings, self.settings.eagle
        params = quick_to_learn(random_eagle(config, settings.seed)[1], config.layer, settings.seed)
        trained, _ = _trained(params)
        if config.own_rows:
            # Training consumes weights, and these lie in NumPy's memory.
            trained["head"].set_value(jnp.array(head_rows(self.base, self.tokens), copy=True))
        return place({"drafter": trained}, mesh)

    def _objective(self, settings: EagleSettings, depths: int | None = None) -> Objective:
        (target, _), (drafter, _) = abstract_params(settings.model), abstract_eagle(settings.eagle)

        def structure(trained: Any) -> Any:
            return nnx.merge(drafter, self._whole(trained))

        return eagle_objective(target, structure, settings, self.tokens, depths=depths, chunk=CHUNK_OF_DRAFTER)

    def _whole(self, trained: Any) -> nnx.State:
        """Returns all parameters: those that are trained, and the tokens of the head's rows."""
        config = self.settings.eagle
        if config.head_size == config.vocab_size:
            return trained
        return nnx.merge_state(trained, nnx.State({"tokens": TokenIds(jnp.asarray(self.tokens, jnp.int32))}))

    def save(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None) -> None:
        """Writes what `--method eagle --drafter FOLDER` reads, bound to the target's weights."""
        params, mark = self._whole(stored["drafter"]), frozen.fingerprints["base"]
        save_eagle(folder, self.settings.eagle, params, base_fingerprint=mark, trained_length=self.settings.length)

    def card(self, folder: Path, stored: dict[str, Any], frozen: Frozen | None, ended: Ended) -> str:
        """Returns the card, with held-out accuracies of the stored weights."""
        settings, config = self.settings, self.settings.eagle
        on = {"taps normed": config.tap_norms, "normed features fed back": config.feeds_normed}
        on |= {"normed residual": config.residual_normed}
        return drafter_card(
            settings,
            ended,
            title="An EAGLE-3 drafter",
            about={
                "Taps": f"what enters layers {', '.join(map(str, config.taps))} of the target (from 0)",
                **self.said_told,
                "Rows of tokens": "the drafter's own" if config.own_rows else "the target's",
                "Norms of EAGLE-3.1": ", ".join(name for name, given in on.items() if given) or "none",
                "Training-time test": f"{settings.test_steps} steps, each counting {settings.step_decay:g} of the last",
                "Drafts up to position": f"{config.max_positions:,}",
            },
            command="jax-smash generate --method eagle --drafter FOLDER --model TARGET",
            base_fingerprint=frozen.fingerprints["base"],
            depths=self.depths,
            left_out=self.left_out,
        )


def _trained(params: nnx.State) -> tuple[Any, ...]:
    """Returns the parameters that are trained, and the others."""
    return nnx.split_state(params, nnx.Param, ...)
