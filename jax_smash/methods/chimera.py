"""Chimera, and what it needs to draft for a model."""

import dataclasses

import numpy as np

from jax_smash.checkpoints.chimera import ChimeraModules, load_chimera, random_drafter, read_chimera
from jax_smash.draft.chimera import ChimeraDrafter
from jax_smash.draft.draft_model import Draws
from jax_smash.draft.trees.templates import named_tree
from jax_smash.ladder import Ladder
from jax_smash.loading import Model
from jax_smash.methods.draft_options import DRAWS
from jax_smash.methods.drafted import drafted
from jax_smash.methods.method import Method, Setup
from jax_smash.methods.trained import check_sizes, fitting, held_as, width_and_taps
from jax_smash.models.chimera_config import ChimeraConfig

NAME = "chimera"

TREE = "chain-4"
"""The tree where none is named."""


def chimera(setup: Setup) -> Method:
    """Makes the method for a model and a drafter that fits it."""
    modules = fitting(
        setup.model,
        setup.draft.drafter,
        method=NAME,
        kind=ChimeraModules,
        read=read_chimera,
        load=load_chimera,
        random=random_drafter,
        check=check_target,
    )
    tree = TREE if setup.draft.tree == "auto" else setup.draft.tree
    topology = named_tree(tree)
    width = int(topology.rank.max()) + 1
    if width > modules.config.vocab_size:
        raise ValueError(f"a node has at most {modules.config.vocab_size} children, as many as tokens; got {width}")
    drafter = ChimeraDrafter(
        target=setup.model.definition,
        model=modules.definition,
        width=width,
        room=max(np.bincount(topology.depth)[:-1].tolist(), default=1),
        gram_slots=setup.draft.gram_slots,
        noisy=setup.sampled and DRAWS.get(setup.draft.verify, Draws.COUPLED) is Draws.COUPLED,
    )
    ladder = Ladder(trees=(topology,), source=f"the tree {tree}")
    method = drafted(NAME, setup, drafter, None, ladder=ladder)
    return dataclasses.replace(method, params={**method.params, "drafter": held_as(setup.model, modules.params)})


def check_target(config: ChimeraConfig, model: Model, where: str) -> None:
    """Refuses another target than the drafter was made for.

    Args:
      config: of the drafter.
      model: the target at hand.
      where: the drafter is, named in errors.

    Raises:
      ValueError: the target has another width or vocabulary.
    """
    width, _ = width_and_taps(model)
    sizes = {"width": (config.d_model, width), "vocabulary": (config.vocab_size, model.vocab_size)}
    check_sizes(sizes, model, where)
