"""Medusa, and what it needs to draft for a model."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jax_smash.cache import Block
from jax_smash.checkpoints.medusa import MedusaModules, load_medusa, random_heads, read_medusa
from jax_smash.draft.draft_model import Draws
from jax_smash.draft.medusa import MedusaDrafter
from jax_smash.draft.trees.templates import named_tree
from jax_smash.ladder import Ladder
from jax_smash.loading import Model
from jax_smash.methods.draft_options import DRAWS, RANDOM
from jax_smash.methods.drafted import drafted
from jax_smash.methods.eagle import check_weights, held_as
from jax_smash.methods.method import Method, Setup
from jax_smash.models.medusa import MedusaConfig
from jax_smash.quantise import activation_dtype

NAME = "medusa"

TREE = "tree-15"
"""The tree where none is named."""


def medusa(setup: Setup) -> Method:
    """Makes the method for a model and heads that fit it."""
    modules = _fitting(setup.model, setup.draft.drafter)
    tree = TREE if setup.draft.tree == "auto" else setup.draft.tree
    topology = named_tree(tree)
    width = int(topology.rank.max()) + 1
    if width > modules.config.vocab_size:
        raise ValueError(f"a node has at most {modules.config.vocab_size} children, as many as tokens; got {width}")
    drafter = MedusaDrafter(
        target=setup.model.definition,
        model=modules.definition,
        width=width,
        noisy=setup.sampled and DRAWS.get(setup.draft.verify, Draws.COUPLED) is Draws.COUPLED,
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
    for name, wanted, found in (
        ("width", config.d_model, _width(model)),
        ("vocabulary", config.vocab_size, model.vocab_size),
    ):
        if wanted != found:
            raise ValueError(f"{where} is for a target with a {name} of {wanted}; {model.name} has one of {found}")


def _fitting(model: Model, given: Any) -> MedusaModules:
    """Returns the heads that the options name, after checking that they fit; nothing is loaded before."""
    dtype = activation_dtype(model.params["target"])
    if given is None:
        raise ValueError(
            f"method {NAME} needs a drafter: a folder that holds heads, or {RANDOM} to measure what they cost"
        )
    if isinstance(given, MedusaModules):
        check_target(given.config, model, "the drafter")
        check_weights(given.base_fingerprint, model, "the drafter")
        return given
    if not isinstance(given, str | Path):
        raise ValueError(f"method {NAME} needs Medusa's heads; got {type(given).__name__}")
    if str(given) == RANDOM:
        if model.config is None:
            raise ValueError(f"a random drafter needs a model of this package; {model.name} is none")
        return random_heads(model.config, dtype=dtype)
    described, where = read_medusa(given), f"the drafter in {given}"
    check_target(described.config, model, where)
    check_weights(described.base_fingerprint, model, where)
    return load_medusa(given, dtype=dtype)


def _width(model: Model) -> int:
    """Returns the width of a model's hidden states. Nothing is computed."""

    def forward(params: Any) -> Any:
        bound, token = model.definition.bind(params), jnp.zeros((1, 1), jnp.int32)
        block = Block.causal(jnp.ones((1, 1), bool))
        return bound.forward(bound.embed(token), token, bound.init_cache(1, 1, 1), block).hidden

    return int(jax.eval_shape(forward, model.params["target"]).shape[-1])
