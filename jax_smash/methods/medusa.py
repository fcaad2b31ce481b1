"""Medusa, and what it needs to draft for a model."""

from jax_smash.checkpoints.medusa import MedusaModules, load_medusa, random_heads, read_medusa
from jax_smash.draft.draft_model import Draws
from jax_smash.draft.medusa import MedusaDrafter
from jax_smash.draft.trees.confident import confident
from jax_smash.ladder import Reach
from jax_smash.loading import Model
from jax_smash.methods.draft_options import DRAWS
from jax_smash.methods.method import Setup
from jax_smash.methods.trained import (
    Trained,
    check_sizes,
    fitting,
    held_as,
    ladder_of,
    said_rows,
    share_of_step,
    width_and_taps,
    width_of,
)
from jax_smash.models.medusa import MedusaConfig

NAME = "medusa"

RANKS = 4
"""Tokens of a head that automatic trees may have."""


def medusa(setup: Setup) -> Trained:
    """Makes the drafter for a model that its heads fit."""
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
        noisy=setup.sampled and DRAWS.get(setup.draft.verify, Draws.COUPLED) is Draws.COUPLED,
        confident=sizes,
    )
    said = said_rows(setup.model, modules.tokens)
    return Trained(drafter=drafter, ladder=ladder, params=held_as(setup.model, modules.params), said=said)


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
