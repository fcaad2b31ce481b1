"""DFlash, and what it needs to draft for a model."""

from jax_smash.checkpoints.dflash import DFlashModules, load_dflash, random_drafter, read_dflash
from jax_smash.draft.dflash import DFlashDrafter
from jax_smash.draft.draft_model import Draws
from jax_smash.draft.trees.templates import sized
from jax_smash.draft.trees.tree import check_ranks
from jax_smash.ladder import Ladder, Reach
from jax_smash.methods.method import Setup
from jax_smash.methods.trained import (
    Trained,
    check_tapped,
    fitting,
    ladder_of,
    said_rows,
    share_of_step,
    topology_of,
    width_of,
)
from jax_smash.models.dflash_config import DFlashConfig

NAME = "dflash"

RANKS = 8
"""Children of a node of a tree that grows where the drafter is most certain, at most."""


def dflash(setup: Setup) -> Trained:
    """Makes the drafter for a model that it fits."""
    modules = fitting(
        setup.model,
        setup.draft.drafter,
        method=NAME,
        slots=setup.slots,
        kind=DFlashModules,
        read=read_dflash,
        load=load_dflash,
        random=random_drafter,
        check=check_tapped,
    )
    config: DFlashConfig = modules.config
    vocabulary = config.head_size or config.vocab_size
    draws = setup.draws
    drawn = setup.sampled and draws in (Draws.DIFFERENT, Draws.INDEPENDENT)
    tree, reach = setup.draft.tree, Reach(ranks=min(RANKS, vocabulary), levels=config.block_size - 1)
    nodes = None if drawn else sized(tree)
    grows = nodes is not None
    if tree == "auto" and drawn:
        if setup.draft.costs is not None:
            raise ValueError(f"costs: drawn blocks of method {NAME} are whole, whatever they cost")
        # Drawn children stand where they were drawn, whatever their probability.
        tree = f"chain-{reach.levels}"
    if tree == "auto":
        once = share_of_step(setup.model, modules.params, head=vocabulary)
        ladder = ladder_of(setup, NAME, reach, once=once)
        # A target that reads blocks in order gets one chain.
        grows = ladder.sizing is not None
    else:
        topology = topology_of(tree, reach) if nodes is None else reach.tree(nodes)
        ladder = Ladder(trees=(topology,), source=f"the tree {tree}")
    if drawn and draws is Draws.DIFFERENT:
        check_ranks(ladder.trees[0])
    width = reach.ranks if grows else width_of(ladder, reach)
    if width > vocabulary:
        raise ValueError(f"a node has at most {vocabulary} children, as many as tokens that are said; got {width}")
    drafter = DFlashDrafter(
        target=setup.model.definition,
        model=modules.definition,
        taps=config.taps,
        width=width,
        grows=grows,
        draws=draws,
        sampled=setup.sampled,
    )
    said = said_rows(setup.model, modules.tokens)
    return Trained(drafter=drafter, ladder=ladder, params=modules.params, said=said)
