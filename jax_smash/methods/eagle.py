"""EAGLE-3 and EAGLE-1, and what they need to draft for a model."""

import dataclasses

import numpy as np

from jax_smash.checkpoints.eagle import EagleModules, random_modules
from jax_smash.checkpoints.eagle1 import Eagle1Modules
from jax_smash.checkpoints.eagle_drafters import load_eagle_drafter, read_eagle_drafter
from jax_smash.draft.draft_model import Draws
from jax_smash.draft.eagle import EagleDrafter
from jax_smash.draft.eagle_trees import ConfidentTrees, FixedTrees
from jax_smash.draft.trees.confident import confident
from jax_smash.draft.trees.templates import named_tree
from jax_smash.draft.trees.tree import Topology
from jax_smash.ladder import Ladder
from jax_smash.loading import Model
from jax_smash.methods.draft_options import DRAWS
from jax_smash.methods.drafted import drafted
from jax_smash.methods.method import Method, Setup
from jax_smash.methods.trained import check_sizes, check_tapped, fitting, held_as, width_and_taps
from jax_smash.models.eagle1 import Eagle1Config
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
        kind=(EagleModules, Eagle1Modules),
        read=read_eagle_drafter,
        load=load_eagle_drafter,
        random=random_modules,
        check=check_target,
    )
    tree = TREE if setup.draft.tree == "auto" else setup.draft.tree
    topology, trees = shaped(tree)
    if trees.width > modules.config.head_size:
        said = f"the {modules.config.head_size} tokens that the drafter can say"
        raise ValueError(f"a node has at most as many children as {said}; got {trees.width} in {tree}")
    drafter = EagleDrafter(
        target=setup.model.definition,
        model=modules.definition,
        taps=modules.config.taps,
        levels=topology.levels,
        trees=trees,
        noisy=setup.sampled and DRAWS.get(setup.draft.verify, Draws.COUPLED) is Draws.COUPLED,
    )
    ladder = Ladder(trees=(topology,), source=f"the tree {tree}")
    method = drafted(NAME, setup, drafter, None, ladder=ladder)
    return dataclasses.replace(method, params={**method.params, "drafter": held_as(setup.model, modules.params)})


def shaped(tree: str) -> tuple[Topology, FixedTrees | ConfidentTrees]:
    """Returns a tree's nodes and levels, and how it gets its shape."""
    sizes = confident(tree)
    if sizes is not None:
        return sizes.topology, ConfidentTrees(sizes)
    topology = named_tree(tree)
    room = max(np.bincount(topology.depth)[:-1].tolist(), default=1)
    return topology, FixedTrees(width=int(topology.rank.max()) + 1, room=room)


def check_target(config: EagleConfig | Eagle1Config, model: Model, where: str) -> None:
    """Refuses another target than the drafter was made for.

    Args:
      config: of the drafter.
      model: the target at hand.
      where: the drafter is, named in errors.

    Raises:
      ValueError: the target gives no taps and the drafter reads some, or it has another width, vocabulary or number of
        layers.
    """
    if isinstance(config, EagleConfig):
        check_tapped(config, model, where)
    else:
        sizes = {
            "width": (config.d_model, width_and_taps(model)[0]),
            "vocabulary": (config.vocab_size, model.vocab_size),
        }
        check_sizes(sizes, model, where)
