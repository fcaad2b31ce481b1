"""EAGLE-3 and EAGLE-1, and what they need to draft for a model."""

from jax_smash.checkpoints.eagle import EagleModules, random_modules
from jax_smash.checkpoints.eagle1 import Eagle1Modules
from jax_smash.checkpoints.eagle_drafters import load_eagle_drafter, read_eagle_drafter
from jax_smash.draft.eagle import EagleDrafter
from jax_smash.draft.trees.by_level import ConfidentTrees, FixedTrees
from jax_smash.draft.trees.confident import Confident, confident
from jax_smash.ladder import Reach, narrows
from jax_smash.loading import Model
from jax_smash.methods.method import Setup
from jax_smash.methods.trained import (
    Trained,
    branching,
    check_shape,
    check_tapped,
    fitting,
    ladder_of,
    room_of,
    said_rows,
    share_of_step,
    width_of,
)
from jax_smash.models.eagle1 import Eagle1Config
from jax_smash.models.eagle_config import EagleConfig

NAME = "eagle"

RANKS, LEVELS = 4, 7
"""Tokens of a node, and levels, that automatic trees may have."""

STOPPING = Confident(7, depth=7, width=1, least=0.15)
"""The automatic tree where forwards over fewer nodes take less time."""


def eagle(setup: Setup) -> Trained:
    """Makes the drafter for a model that it fits."""
    modules = fitting(
        setup.model,
        setup.draft.drafter,
        method=NAME,
        slots=setup.slots,
        kind=(EagleModules, Eagle1Modules),
        read=read_eagle_drafter,
        load=load_eagle_drafter,
        random=random_modules,
        check=check_target,
    )
    tree, config = setup.draft.tree, modules.config
    said = config.head_size or config.vocab_size
    sizes, reach = confident(tree), branching(min(RANKS, said), levels=LEVELS)
    if tree == "auto" and narrows() and setup.draft.verify == "coupling":
        sizes, reach = STOPPING, Reach(ranks=1, levels=STOPPING.levels, stopping=STOPPING.nodes)
    borrows = isinstance(config, Eagle1Config) or not config.own_rows
    each = share_of_step(setup.model, modules.params, head=said if borrows else 0)
    ladder = ladder_of(setup, NAME, reach, drafting=each)
    trees: FixedTrees | ConfidentTrees = FixedTrees(width=width_of(ladder, reach), room=room_of(ladder, reach))
    trees = trees if sizes is None else ConfidentTrees(sizes)
    if trees.width > said:
        tokens = f"the {said} tokens that the drafter can say"
        raise ValueError(f"a node has at most as many children as {tokens}; got {trees.width} in {tree}")
    drafter = EagleDrafter(
        target=setup.model.definition,
        model=modules.definition,
        taps=modules.config.taps,
        levels=max(tree.levels for tree in ladder.trees),
        trees=trees,
        noisy=setup.noisy,
    )
    rows = said_rows(setup.model, modules.tokens)
    return Trained(drafter=drafter, ladder=ladder, params=modules.params, said=rows)


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
    (check_tapped if isinstance(config, EagleConfig) else check_shape)(config, model, where)
