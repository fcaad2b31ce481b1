"""EAGLE-3, and what it needs to draft for a model."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_smash.cache import Block
from jax_smash.checkpoints.eagle import EagleModules, load_eagle, random_modules, read_eagle
from jax_smash.draft.draft_model import Draws
from jax_smash.draft.eagle import EagleDrafter
from jax_smash.draft.trees.templates import named_tree
from jax_smash.ladder import Ladder
from jax_smash.loading import Model, weights_fingerprint
from jax_smash.methods.draft_options import DRAWS, RANDOM
from jax_smash.methods.drafted import drafted
from jax_smash.methods.method import Method, Setup
from jax_smash.models.eagle_config import EagleConfig
from jax_smash.quantise import activation_dtype, has_int8, quantise_params
from jax_smash.sharding import mesh_of, place

NAME = "eagle"

TREE = "chain-4"
"""The tree where none is named."""


def eagle(setup: Setup) -> Method:
    """Makes the method for a model and a drafter that fits it."""
    modules = _fitting(setup.model, setup.draft.drafter)
    tree = TREE if setup.draft.tree == "auto" else setup.draft.tree
    topology = named_tree(tree)
    width = int(topology.rank.max()) + 1
    if width > modules.config.head_size:
        said = f"the {modules.config.head_size} tokens that the drafter can say"
        raise ValueError(f"a node has at most as many children as {said}; got {width} in {tree}")
    drafter = EagleDrafter(
        target=setup.model.definition,
        model=modules.definition,
        taps=modules.config.taps,
        levels=topology.levels,
        width=width,
        room=max(np.bincount(topology.depth)[:-1].tolist(), default=1),
        noisy=setup.sampled and DRAWS.get(setup.draft.verify, Draws.COUPLED) is Draws.COUPLED,
    )
    ladder = Ladder(trees=(topology,), source=f"the tree {tree}")
    method = drafted(NAME, setup, drafter, None, ladder=ladder)
    return dataclasses.replace(method, params={**method.params, "drafter": held_as(setup.model, modules.params)})


def check_target(config: EagleConfig, model: Model, where: str) -> None:
    """Refuses another target than the drafter was made for.

    Args:
      config: of the drafter.
      model: the target at hand.
      where: the drafter is, named in errors.

    Raises:
      ValueError: the target gives no taps, or has another width, vocabulary or number of layers.
    """
    width, taps = _sizes(model)
    if not taps:
        raise ValueError(f"{where} reads taps {list(config.taps)} of its target; {model.name} gives none")
    sizes = {
        "width": (config.d_model, width),
        "vocabulary": (config.vocab_size, model.vocab_size),
        "number of layers": (config.target_layers, taps - 1),
    }
    for name, (wanted, found) in sizes.items():
        if wanted != found:
            raise ValueError(f"{where} is for a target with a {name} of {wanted}; {model.name} has one of {found}")


def check_weights(expected: str, model: Model, where: str) -> None:
    """Refuses another target than the one that the drafter was trained for, of the same shape though it is.

    Args:
      expected: fingerprint of the weights that it was trained for; empty where nobody told.
      model: the target at hand.
      where: the drafter is, named in errors.

    Raises:
      ValueError: the target's weights are others, or do not tell which they are.
    """
    if not expected:
        return
    if (found := weights_fingerprint(model)) is None:
        raise ValueError(
            f"{where} goes with the weights alone that it was trained for, and {model.name} does not tell what its "
            "rounded ones were made from: load them in another dtype"
        )
    if found != expected:
        raise ValueError(
            f"{where} was trained for a target whose weights have fingerprint {expected[:16]}…; "
            f"those of {model.name} have {found[:16]}…"
        )


def _fitting(model: Model, given: Any) -> EagleModules:
    """Returns the drafter that the options name, after checking that it fits; nothing is loaded before."""
    dtype = activation_dtype(model.params["target"])
    if given is None:
        raise ValueError(
            f"method {NAME} needs a drafter: a folder that holds one, or {RANDOM} to measure what it costs"
        )
    if isinstance(given, EagleModules):
        check_target(given.config, model, "the drafter")
        check_weights(given.base_fingerprint, model, "the drafter")
        return given
    if not isinstance(given, str | Path):
        raise ValueError(f"method {NAME} needs an EAGLE-3 drafter; got {type(given).__name__}")
    if str(given) == RANDOM:
        if model.config is None:
            raise ValueError(f"a random drafter needs a model of this package; {model.name} is none")
        return random_modules(model.config, dtype=dtype)
    described, where = read_eagle(given), f"the drafter in {given}"
    check_target(described.config, model, where)
    check_weights(described.base_fingerprint, model, where)
    return load_eagle(given, dtype=dtype)


def _sizes(model: Model) -> tuple[int, int]:
    """Returns the width of a model, and how many taps its forward gives. Nothing is computed."""

    def forward(params: Any) -> tuple[Any, Any]:
        bound, token = model.definition.bind(params), jnp.zeros((1, 1), jnp.int32)
        vectors = bound.embed(token)
        out = bound.forward(vectors, token, bound.init_cache(1, 1, 1), Block.causal(jnp.ones((1, 1), bool)))
        return vectors, out.taps

    vectors, taps = jax.eval_shape(forward, model.params["target"])
    return vectors.shape[-1], len(taps)


def held_as(model: Model, params: Any) -> Any:
    """Returns the drafter's parameters as the target's are held: int8 or not, and on its devices."""
    if has_int8(model.params["target"]) and not has_int8(params):
        params = quantise_params(params)
    mesh = mesh_of(model.params)
    return params if mesh is None else place(params, mesh)
