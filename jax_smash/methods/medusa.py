"""Medusa, and what it needs to draft for a model."""

from jax_smash.checkpoints.medusa import MedusaModules, load_medusa, random_heads, read_medusa
from jax_smash.draft.medusa import MedusaDrafter
from jax_smash.draft.trees.confident import confident
from jax_smash.ladder import Reach
from jax_smash.methods.method import Setup
from jax_smash.methods.trained import (
    Trained,
    check_shape,
    fitting,
    ladder_of,
    said_rows,
    share_of_step,
    width_of,
)

NAME = "medusa"

RANKS = 4
"""Tokens of a head that automatic trees may have."""


def medusa(setup: Setup) -> Trained:
    """Makes the drafter for a model that its heads fit."""
    modules = fitting(
        setup.model,
        setup.draft.drafter,
        method=NAME,
        slots=setup.slots,
        kind=MedusaModules,
        read=read_medusa,
        load=load_medusa,
        random=random_heads,
        check=check_shape,
    )
    tree, config = setup.draft.tree, modules.config
    vocabulary = config.head_size or config.vocab_size
    sizes, reach = confident(tree), Reach(ranks=min(RANKS, vocabulary), levels=config.num_heads)
    once = share_of_step(setup.model, modules.params, head=0 if config.own_rows else vocabulary)
    ladder = ladder_of(setup, NAME, reach, once=once)
    width = width_of(ladder, reach) if sizes is None else sizes.width
    if width > vocabulary:
        raise ValueError(f"a node has at most {vocabulary} children, as many as tokens that are said; got {width}")
    drafter = MedusaDrafter(
        target=setup.model.definition,
        model=modules.definition,
        width=width,
        noisy=setup.noisy,
        confident=sizes,
    )
    said = said_rows(setup.model, modules.tokens)
    return Trained(drafter=drafter, ladder=ladder, params=modules.params, said=said)
