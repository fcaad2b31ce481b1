"""DFlash, and what it needs to draft for a model."""

import dataclasses

from jax_smash.checkpoints.dflash import DFlashModules, load_dflash, random_drafter, read_dflash
from jax_smash.draft.dflash import DFlashDrafter
from jax_smash.draft.draft_model import Draws
from jax_smash.draft.trees.acceptance import prior_rates
from jax_smash.draft.trees.sizing import best_tree
from jax_smash.draft.trees.templates import named_tree, sized
from jax_smash.draft.trees.tree import Topology, check_ranks
from jax_smash.ladder import Ladder
from jax_smash.methods.draft_options import DRAWS
from jax_smash.methods.drafted import drafted
from jax_smash.methods.method import Method, Setup
from jax_smash.methods.trained import check_tapped, fitting, held_as
from jax_smash.models.dflash_config import DFlashConfig

NAME = "dflash"

RANKS = 8
"""Children of a node of a tree that grows where the drafter is most certain, at most."""


def dflash(setup: Setup) -> Method:
    """Makes the method for a model and a drafter that fits it."""
    modules = fitting(
        setup.model,
        setup.draft.drafter,
        method=NAME,
        kind=DFlashModules,
        read=read_dflash,
        load=load_dflash,
        random=random_drafter,
        check=check_tapped,
    )
    config: DFlashConfig = modules.config
    draws = DRAWS.get(setup.draft.verify, Draws.COUPLED)
    drawn = setup.sampled and draws in (Draws.DIFFERENT, Draws.INDEPENDENT)
    name = f"chain-{config.block_size - 1}" if setup.draft.tree == "auto" else setup.draft.tree
    # Drawn children stand where they were drawn, whatever their probability.
    grows = sized(name) is not None and not drawn
    topology = _room_to_grow(config, sized(name) or 0) if grows else named_tree(name)
    if drawn and draws is Draws.DIFFERENT:
        check_ranks(topology)
    width = min(RANKS, topology.nodes - 1, config.vocab_size) if grows else int(topology.rank.max()) + 1
    if width > config.vocab_size:
        raise ValueError(f"a node has at most {config.vocab_size} children, as many as tokens; got {width}")
    drafter = DFlashDrafter(
        target=setup.model.definition,
        model=modules.definition,
        taps=config.taps,
        width=width,
        grows=grows,
        draws=draws,
        sampled=setup.sampled,
    )
    ladder = Ladder(trees=(topology,), source=f"the tree {name}")
    method = drafted(NAME, setup, drafter, None, ladder=ladder)
    return dataclasses.replace(method, params={**method.params, "drafter": held_as(setup.model, modules.params)})


def _room_to_grow(config: DFlashConfig, nodes: int) -> Topology:
    """Returns a topology for trees of so many drafted nodes as deep as the block is long."""
    levels = config.block_size - 1
    return best_tree(prior_rates(levels, RANKS), nodes, levels=min(levels, nodes))
