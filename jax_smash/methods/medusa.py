"""Medusa, and what it needs to draft for a model."""

import dataclasses

from jax_smash.checkpoints.medusa import MedusaModules, load_medusa, random_heads, read_medusa
from jax_smash.draft.draft_model import Draws
from jax_smash.draft.medusa import MedusaDrafter
from jax_smash.draft.trees.confident import confident
from jax_smash.draft.trees.templates import named_tree
from jax_smash.ladder import Ladder
from jax_smash.loading import Model
from jax_smash.methods.draft_options import DRAWS
from jax_smash.methods.drafted import drafted
from jax_smash.methods.method import Method, Setup
from jax_smash.methods.trained import check_sizes, fitting, held_as, width_and_taps
from jax_smash.models.medusa import MedusaConfig

NAME = "medusa"

TREE = "tree-15"
"""The tree where none is named."""


def medusa(setup: Setup) -> Method:
    """Makes the method for a model and heads that fit it."""
    modules = fitting(
        setup.model,
        setup.draft.drafter,
        method=NAME,
        kind=MedusaModules,
        read=read_medusa,
        load=load_medusa,
        random=random_heads,
        check=check_target,
    )
    tree = TREE if setup.draft.tree == "auto" else setup.draft.tree
    sizes = confident(tree)
    topology = named_tree(tree) if sizes is None else sizes.topology
    width = int(topology.rank.max()) + 1 if sizes is None else sizes.width
    if width > modules.config.vocab_size:
        raise ValueError(f"a node has at most {modules.config.vocab_size} children, as many as tokens; got {width}")
    drafter = MedusaDrafter(
        target=setup.model.definition,
        model=modules.definition,
        width=width,
        noisy=setup.sampled and DRAWS.get(setup.draft.verify, Draws.COUPLED) is Draws.COUPLED,
        confident=sizes,
    )
    ladder = Ladder(trees=(topology,), source=f"the tree {tree}")
    method = drafted(NAME, setup, drafter, None, ladder=ladder)
    return dataclasses.replace(method, params={**method.params, "drafter": held_as(setup.model, modules.params)})


def check_target(config: MedusaConfig, model: Model, where: str) -> None:
    """Refuses another target than the heads were made for.

    Args:
      config: of the heads.
      model: the target at hand.
      where: the heads are, named in errors.

    Raises:
      ValueError: the target has another width or vocabulary.
    """
    width, _ = width_and_taps(model)
    sizes = {"width": (config.d_model, width), "vocabulary": (config.vocab_size, model.vocab_size)}
    check_sizes(sizes, model, where)
