"""EAGLE-3, and what it needs to draft for a model."""

import dataclasses

import numpy as np

from jax_smash.checkpoints.eagle import EagleModules, load_eagle, random_modules, read_eagle
from jax_smash.draft.draft_model import Draws
from jax_smash.draft.eagle import EagleDrafter
from jax_smash.draft.trees.templates import named_tree
from jax_smash.ladder import Ladder
from jax_smash.loading import Model
from jax_smash.methods.draft_options import DRAWS
from jax_smash.methods.drafted import drafted
from jax_smash.methods.method import Method, Setup
from jax_smash.methods.trained import check_sizes, fitting, held_as, width_and_taps
from jax_smash.models.eagle_config import EagleConfig

NAME = "eagle"

TREE = "chain-4"
"""The tree where none is named."""


def eagle(setup: Setup) -> Method:
    """Makes the method for a model and a drafter that fits it."""
    modules = fitting(
        setup.model,
        setup.draft.drafter,
        method=NAME,
        kind=EagleModules,
        read=read_eagle,
        load=load_eagle,
        random=random_modules,
        check=check_target,
    )
    tree = TREE if setup.draft.tree == "auto" else setup.draft.tree
    topology = named_tree(tree)
    width = int(topology.rank.max()) + 1
    if width > modules.config.head_size:
        said = f"the {modules.config.head_size} tokens that the drafter can say"
        raise ValueError(f"a node has at most as many children as {said}; got {width} in {tree}")
    drafter = EagleDrafter(
        target=setup.model.definition,
        model=modules.definition,
        taps=modules.config.taps,
        levels=topology.levels,
        width=width,
        room=max(np.bincount(topology.depth)[:-1].tolist(), default=1),
        noisy=setup.sampled and DRAWS.get(setup.draft.verify, Draws.COUPLED) is Draws.COUPLED,
    )
    ladder = Ladder(trees=(topology,), source=f"the tree {tree}")
    method = drafted(NAME, setup, drafter, None, ladder=ladder)
    return dataclasses.replace(method, params={**method.params, "drafter": held_as(setup.model, modules.params)})


def check_target(config: EagleConfig, model: Model, where: str) -> None:
    """Refuses another target than the drafter was made for.

    Args:
      config: of the drafter.
      model: the target at hand.
      where: the drafter is, named in errors.

    Raises:
      ValueError: the target gives no taps, or has another width, vocabulary or number of layers.
    """
    width, taps = width_and_taps(model)
    if not taps:
        raise ValueError(f"{where} reads taps {list(config.taps)} of its target; {model.name} gives none")
    sizes = {
        "width": (config.d_model, width),
        "vocabulary": (config.vocab_size, model.vocab_size),
        "number of layers": (config.target_layers, taps - 1),
    }
    check_sizes(sizes, model, where)
