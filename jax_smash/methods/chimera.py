"""Chimera, and what it needs to draft for a model."""

from pathlib import Path

from jax_smash.checkpoints.chimera import ChimeraModules, load_chimera, random_drafter, read_chimera
from jax_smash.draft.chimera import ChimeraDrafter
from jax_smash.draft.trees.by_level import ConfidentTrees, FixedTrees
from jax_smash.draft.trees.confident import confident
from jax_smash.loading import Model
from jax_smash.methods.method import Setup
from jax_smash.methods.trained import (
    Trained,
    branching,
    check_shape,
    fitting,
    ladder_of,
    room_of,
    said_rows,
    share_of_step,
    width_of,
)
from jax_smash.models.chimera_config import ChimeraConfig

NAME = "chimera"

RANKS = 4
"""Tokens of a node that automatic trees may have."""


def chimera(setup: Setup) -> Trained:
    """Makes the drafter for a model that it fits.

    A loaded one may encode texts: what it says can be measured, but it does not draft.
    """
    given = setup.draft.drafter
    modules = fitting(
        setup.model,
        given,
        method=NAME,
        slots=setup.slots,
        kind=ChimeraModules,
        read=read_chimera,
        load=load_chimera,
        random=random_drafter,
        check=check_target if isinstance(given, str | Path) else check_shape,
    )
    vocabulary = modules.config.head_size or modules.config.vocab_size
    sizes = confident(setup.draft.tree)
    reach = branching(min(RANKS, vocabulary), levels=modules.config.decoding_heads)
    ladder = ladder_of(setup, NAME, reach, drafting=share_of_step(setup.model, modules.params, head=vocabulary))
    trees: FixedTrees | ConfidentTrees = FixedTrees(width=width_of(ladder, reach), room=room_of(ladder, reach))
    trees = trees if sizes is None else ConfidentTrees(sizes)
    if trees.width > vocabulary:
        raise ValueError(
            f"a node has at most {vocabulary} children, as many as tokens that are said; got {trees.width}"
        )
    drafter = ChimeraDrafter(
        target=setup.model.definition,
        model=modules.definition,
        trees=trees,
        gram_slots=setup.draft.gram_slots,
        noisy=setup.noisy,
    )
    said = said_rows(setup.model, modules.tokens)
    return Trained(drafter=drafter, ladder=ladder, params=modules.params, said=said)


def check_target(config: ChimeraConfig, model: Model, where: str) -> None:
    """Refuses another target than the drafter was made for.

    Args:
      config: of the drafter.
      model: the target at hand.
      where: the drafter is, named in errors.

    Raises:
      ValueError: the target has another width or vocabulary, or the drafter is of the form that only trains.
    """
    check_shape(config, model, where)
    if config.encodes_text:
        raise ValueError(f"{where} encodes texts by a layer, gram_encoder {config.gram_encoder!r}, which only trains")
