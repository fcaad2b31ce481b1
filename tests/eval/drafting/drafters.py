"""Drafters of every kind with random weights, and what training says of them."""

import dataclasses

import jax
import numpy as np
from flax import nnx

from jax_smash.checkpoints.smasher import SmashModules
from jax_smash.loading import grafted
from jax_smash.methods import DraftOptions, SmashOptions, make_method
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.smasher import SmasherDef, random_smasher
from tests.chimera import random_drafter as random_chimera
from tests.dflash import random_drafter as random_dflash
from tests.eagle import random_drafter as random_eagle
from tests.eagle1 import random_drafter1 as random_eagle1
from tests.medusa import random_heads
from train.data.rows import Batch
from train.drafter import KINDS
from train.run.optimiser import Optimiser

DEPTHS = 3
SIZES = {"batch_size": 2, "length": 24, "steps": 2}

TEXTS = "chimera of texts"
"""Chimera with a layer in place of grams, and heads without residuals."""

SHAPE = ("taps", "num_layers", "block_size")
"""Of DFlash's layers."""


def random_micro(model):
    """Returns HAMburger's modules with random weights, spread enough for guesses to vary."""
    config = SmashConfig.for_base(model.config, micro_layers=1, micro_steps=DEPTHS + 1, embedder="mean")
    graphdef, params = random_smasher(model.config, config, seed=4)
    params = jax.tree.map(lambda w: w * np.float32(12) if w.ndim > 1 else w, params)
    return SmashModules(config=config, definition=SmasherDef(graphdef), params=params)


MODULES = {
    "eagle": lambda model: random_eagle(model, tokens=list(range(10))),
    "eagle1": random_eagle1,
    "medusa": lambda model: random_heads(model, num_heads=DEPTHS),
    "chimera": lambda model: random_chimera(model, decoding_heads=DEPTHS),
    TEXTS: lambda model: random_chimera(
        model,
        decoding_heads=DEPTHS,
        gram_encoder="layer",
        encoder_mlp_width=model.config.mlp_width,
        residual_heads=False,
    ),
    "dflash": lambda model: random_dflash(model, block_size=DEPTHS + 1),
    "micro": random_micro,
}
"""Of each kind; a kind that is new needs one here."""

SAID = np.arange(10)

SAYING_SOME = {
    "eagle": lambda model: random_eagle(model, tokens=SAID.tolist(), own_rows=False),
    "eagle1": lambda model: random_eagle1(model, head_size=len(SAID)),
    "medusa": lambda model: random_heads(model, num_heads=DEPTHS, own_rows=False, head_size=len(SAID)),
    "chimera": lambda model: random_chimera(model, decoding_heads=DEPTHS, head_size=len(SAID)),
    "dflash": lambda model: random_dflash(model, block_size=DEPTHS + 1, head_size=len(SAID)),
}
"""Of each kind, with the target's rows of `SAID` alone."""


def saying_some(model, kind):
    """Returns modules that say `SAID` alone."""
    modules = SAYING_SOME[kind](model)
    return modules if kind == "eagle" else dataclasses.replace(modules, tokens=SAID)


def method_of(model, kind, modules, **draft):
    """Returns the method that drafts with modules."""
    if kind == "micro":
        return make_method(
            grafted(model, modules), "hamburger", smash=SmashOptions(mode="exact", group_length=DEPTHS + 1)
        )
    return make_method(model, kind.split()[0].removesuffix("1"), draft=DraftOptions(drafter=modules, **draft))


def settings_of(kind, config):
    """Returns the settings of a training run that are those of a drafter."""
    if kind == "medusa":
        return {
            "num_heads": DEPTHS,
            "blocks": config.blocks,
            "own_head": config.own_rows,
            "head_size": config.head_size,
        }
    own = {
        "eagle": {"test_steps": DEPTHS, "own_head": getattr(config, "own_rows", True)},
        "eagle1": {"test_steps": DEPTHS, "noise": 0.0},
        "chimera": {"decoding_heads": DEPTHS},
        TEXTS: {"decoding_heads": DEPTHS, "gram_encoder": "layer", "residual_heads": False},
        "dflash": {"anchors": SIZES["length"]},
        "micro": {"micro_steps": DEPTHS + 1},
    }
    names = {"eagle": ("taps",), "eagle1": ("join_bias",), "dflash": SHAPE}.get(kind, ())
    sizes = () if kind == "micro" else ("mlp_width", "head_size")
    return own[kind] | {name: getattr(config, name) for name in (*sizes, *names)}


def told_by_training(model, kind, modules, texts, said):
    """Returns the means that training's objective tells of a drafter: sum and count by name.

    Args:
      texts: a row each.
      said: marks what counts, of each text.
    """
    part = KINDS[kind.split()[0]]
    settings = part.kind(model=model.config, optimiser=Optimiser(), **SIZES, **settings_of(kind, modules.config))
    arrays, weights = np.zeros((4, len(texts), SIZES["length"]), np.int32), np.zeros((len(texts), SIZES["length"]))
    for row, (text, counts) in enumerate(zip(texts, said, strict=True)):
        place = np.arange(len(text) - 1)
        arrays[:, row, place] = np.stack([text[:-1], text[1:], place, np.ones_like(place)])
        weights[row, place] = counts[1:]
    objective = part(settings).objective()
    params = {"base": model.params["target"], "drafter": nnx.split_state(modules.params, nnx.Param, ...)[0]}
    return jax.jit(objective)(params, Batch(*arrays, weights.astype(np.float32)))[1].means
