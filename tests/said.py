"""Drafters with random weights that say some tokens alone by the target's head."""

import dataclasses

import numpy as np

from tests import chimera, dflash
from tests.eagle1 import random_drafter1
from tests.medusa import random_heads

MAKERS = {
    "medusa": ("medusa", lambda model, **changes: random_heads(model, own_rows=False, **changes)),
    "chimera": ("chimera", chimera.random_drafter),
    "dflash": ("dflash", dflash.random_drafter),
    "eagle1": ("eagle", random_drafter1),
}
"""By kind: the method that drafts with it, and what makes one for a target."""


def every(model, share: int) -> np.ndarray:
    """Returns every so many of a model's tokens."""
    return np.arange(0, model.vocab_size, share, dtype=np.int32)


def saying_some(kind: str, model, share: int = 3, **changes):
    """Returns a drafter that says every so many tokens; every one is all of them, by a head that is no shorter."""
    tokens = every(model, share)
    made = MAKERS[kind][1](model, head_size=len(tokens), **changes)
    return dataclasses.replace(made, tokens=tokens)


def saying_all(kind: str, model, **changes):
    """Returns the same drafter without a list of tokens."""
    return MAKERS[kind][1](model, **changes)
