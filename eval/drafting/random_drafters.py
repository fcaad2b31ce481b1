"""Drafters with random weights, by kind: they tell what drafting takes, which weights do not change."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jax_smash.checkpoints.chimera import random_drafter as random_chimera
from jax_smash.checkpoints.dflash import random_drafter as random_dflash
from jax_smash.checkpoints.eagle import random_modules as random_eagle
from jax_smash.checkpoints.eagle1 import random_eagle1_modules as random_eagle1
from jax_smash.checkpoints.medusa import random_heads
from jax_smash.checkpoints.smasher import SmashModules
from jax_smash.config import ModelConfig
from jax_smash.methods import RANDOM
from jax_smash.models.chimera_config import ChimeraConfig
from jax_smash.models.dflash_config import DFlashConfig
from jax_smash.models.eagle1 import Eagle1Config
from jax_smash.models.eagle_config import EagleConfig
from jax_smash.models.medusa import MedusaConfig
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.options import SmashOptions
from jax_smash.smash.smasher import SmasherDef, random_smasher

PREFIX = f"{RANDOM}:"
"""Before a kind, in place of a drafter's folder."""


@dataclasses.dataclass(frozen=True)
class RandomKind:
    """How random drafters of a kind are made, of the usual sizes for a target.

    Attributes:
      config: returns their configuration.
      make: returns one, in a `dtype`.
    """

    config: Callable[[ModelConfig], Any]
    make: Callable[..., Any]


def random_micro(target: ModelConfig, *, dtype: Any) -> SmashModules:
    """Makes HAMburger's modules of the usual sizes for a target, with random weights; they make groups all the same."""
    config = SmashConfig.for_base(target)
    graphdef, params = random_smasher(target, config, dtype=dtype)
    trusting = SmashOptions(confidence=1e-6, token_confidence=0.0)
    return SmashModules(config=config, definition=SmasherDef(graphdef), params=params, options=trusting)


KINDS = {
    "eagle": RandomKind(EagleConfig.for_target, random_eagle),
    "eagle1": RandomKind(Eagle1Config.for_target, random_eagle1),
    "medusa": RandomKind(lambda target: MedusaConfig(target.vocab_size, target.d_model), random_heads),
    "chimera": RandomKind(ChimeraConfig.for_target, random_chimera),
    "dflash": RandomKind(DFlashConfig.for_target, random_dflash),
    "micro": RandomKind(SmashConfig.for_base, random_micro),
}
"""By kind; micro are HAMburger's modules."""


def random_kind(folder: Path) -> str | None:
    """Returns the kind that stands in place of a folder, as in `random:medusa`; None for a folder.

    Raises:
      ValueError: there is no such kind.
    """
    name = str(folder)
    if not name.startswith(PREFIX):
        return None
    if (kind := name.removeprefix(PREFIX)) not in KINDS:
        raise ValueError(f"a random drafter must be one of {', '.join(PREFIX + known for known in KINDS)}; got {name}")
    return kind
