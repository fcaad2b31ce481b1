"""EAGLE-3, and what it needs to draft for a model."""

import dataclasses

import numpy as np

from jax_smash.checkpoints.eagle import EagleModules, load_eagle, random_modules, read_eagle
from jax_smash.draft.draft_model import Draws
from jax_smash.draft.eagle import EagleDrafter
from jax_smash.draft.trees.templates import named_tree
from jax_smash.ladder import Ladder
from jax_smash.methods.draft_options import DRAWS
from jax_smash.methods.drafted import drafted
from jax_smash.methods.method import Method, Setup
from jax_smash.methods.trained import check_tapped, fitting, held_as

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
        check=check_tapped,
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
