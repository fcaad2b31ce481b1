"""Several drafters under one budget, and what they need to draft for a model."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jax_smash.checkpoints.chimera import ChimeraModules
from jax_smash.checkpoints.dflash import DFlashModules
from jax_smash.checkpoints.eagle import EagleModules
from jax_smash.checkpoints.eagle1 import Eagle1Modules
from jax_smash.checkpoints.medusa import MedusaModules
from jax_smash.draft.eagle import EagleDrafter
from jax_smash.draft.hybrid import Hybrid
from jax_smash.draft.recycling import Recycling
from jax_smash.draft.suffix import Suffix
from jax_smash.methods.chimera import chimera
from jax_smash.methods.dflash import dflash
from jax_smash.methods.draft_options import drafts_with
from jax_smash.methods.drafted import deepest, drafted
from jax_smash.methods.eagle import eagle
from jax_smash.methods.medusa import medusa
from jax_smash.methods.method import Method, Setup
from jax_smash.methods.trained import Trained
from jax_smash.protocols import LateLearner

NAME = "hybrid"

MAKERS: dict[str, Callable[[Setup], Trained]] = {
    "eagle": eagle,
    "medusa": medusa,
    "chimera": chimera,
    "dflash": dflash,
}
"""What makes a trained drafter, by its own method."""

KINDS: dict[type, str] = {
    EagleModules: "eagle",
    Eagle1Modules: "eagle",
    MedusaModules: "medusa",
    ChimeraModules: "chimera",
    DFlashModules: "dflash",
}
"""The method of a loaded drafter."""


def hybrid(setup: Setup) -> Method:
    """Makes the method for a model.

    Without a trained drafter, Token Recycling drafts a tree and suffix lookup a chain; beside one, which drafts the
    tree, both draft a chain.
    """
    recycling = Recycling(target=setup.model.definition)
    known, given = recycling.empty(setup.model.params), setup.draft.drafter
    if given is None:
        return drafted(NAME, setup, Hybrid(tree=recycling, line=Suffix()), (known, None))
    made = _maker(given)(setup)
    both = _beside(made.drafter, recycling)
    if isinstance(made.drafter, EagleDrafter):
        # What is kept of a chain waits too, and that may be deeper than its own trees.
        both = _beside(dataclasses.replace(made.drafter, levels=deepest(both, made.ladder)), recycling)
    method = drafted(NAME, setup, both, ((None, None), known), ladder=made.ladder)
    return dataclasses.replace(method, params=made.added(method.params))


def _beside(drafter: LateLearner, recycling: Recycling) -> Hybrid:
    return Hybrid(tree=Hybrid(tree=drafter, line=Suffix()), line=recycling)


def _maker(given: Any) -> Callable[[Setup], Trained]:
    """Returns what makes the drafter that is given: a folder, or a loaded one.

    Raises:
      ValueError: it is none.
    """
    if isinstance(given, str | Path):
        return MAKERS[drafts_with(given)]
    if type(given) not in KINDS:
        raise ValueError(f"method {NAME} needs {' or '.join(k.__name__ for k in KINDS)}; got {type(given).__name__}")
    return MAKERS[KINDS[type(given)]]
