"""Several drafters under one budget, and what they need to draft for a model."""

import dataclasses
from collections.abc import Callable

from jax_smash.draft.eagle import EagleDrafter
from jax_smash.draft.hybrid import Hybrid
from jax_smash.draft.recycling import Recycling
from jax_smash.draft.relay import Relay
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

SURE = 0.2
"""Probability below which suffix lookup drafts nothing, and leaves it to a trained drafter that stops as well."""

MAKERS: dict[str, Callable[[Setup], Trained]] = {
    "eagle": eagle,
    "medusa": medusa,
    "chimera": chimera,
    "dflash": dflash,
}
"""What makes a trained drafter, by its own method."""


def hybrid(setup: Setup) -> Method:
    """Makes the method for a model.

    Without a trained drafter, Token Recycling drafts a tree and suffix lookup a chain; beside one, which drafts the
    tree, both draft a chain. A trained drafter that stops where it is unsure drafts for rows for which suffix lookup
    finds nothing likely. Nothing is recycled then, because there is no estimate of how likely recycled tokens are to be
    kept.
    """
    recycling, given = Recycling(target=setup.model.definition), setup.draft.drafter
    if given is None:
        known = recycling.empty(setup.model.params)
        return drafted(NAME, setup, Hybrid(tree=recycling, line=Suffix()), (known, None))
    made = MAKERS[drafts_with(given)](dataclasses.replace(setup, within=NAME))
    if getattr(made.drafter, "least", 0.0):
        relay = Relay(first=Suffix(least=SURE), second=made.drafter)
        return _with_params(made, drafted(NAME, setup, relay, (None, None), ladder=made.ladder))

    def beside(drafter: LateLearner) -> Hybrid:
        return Hybrid(tree=Hybrid(tree=drafter, line=Suffix()), line=recycling)

    every = beside(made.drafter)
    if isinstance(made.drafter, EagleDrafter):
        # What is kept of a chain waits too, and that may be deeper than its own trees.
        every = beside(dataclasses.replace(made.drafter, levels=deepest(every, made.ladder)))
    known = recycling.empty(setup.model.params)
    return _with_params(made, drafted(NAME, setup, every, ((None, None), known), ladder=made.ladder))


def _with_params(made: Trained, method: Method) -> Method:
    return dataclasses.replace(method, params=made.added(method.params))
