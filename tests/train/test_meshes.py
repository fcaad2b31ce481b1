"""A training step of every part makes on meshes of eight devices what it makes on one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax_smash.sharding import make_mesh, param_shardings, place
from tests.meshes import MESHES, divisible_model
from tests.smashers import filled
from train.drafter import KINDS
from train.parts.butler.part import Butler
from train.parts.butler.settings import ButlerSettings
from train.parts.hamburger.part import Hamburger
from train.parts.hamburger.settings import SmashSettings
from train.parts.language_model.part import LanguageModel
from train.run.optimiser import Optimiser
from train.run.settings import Settings
from train.run.step import first_state, make_step, place_rows
from train.speed import PARTS

SMASH = {"micro_layers": 1, "micro_steps": 3}
PREDICTORS = {
    "per_head": {"kind": "per_head", "reduced": 8, "reduced_heads": 4, "hidden": 12, "width": 8},
    "grouped": {"kind": "grouped", "every": 2, "hidden": 16, "width": 8},
    "gate": {"kind": "gate", "page": 4, "width": 8},
}
CASES = {
    "language-model": {},
    "language-model/scan": {"scan": True, "remat": True},
    "language-model/parts": {"accumulate": 2, "batch_size": 16},
    "hamburger": SMASH,
    "hamburger/frozen": SMASH | {"base": "frozen"},
    "hamburger/lora": SMASH | {"base": "lora", "kl_weight": 0.5},
    "butler": {"predictors": PREDICTORS, "recall_from": 4},
    "eagle": {"head_size": 200, "mlp_width": 32, "test_steps": 2, "taps": (0, 1, 2)},
    "eagle1": {"mlp_width": 32, "noise": 0.0, "test_steps": 2},
    "medusa": {"num_heads": 2},
    "medusa/lora": {"num_heads": 2, "base": "lora", "rank": 4},
    "chimera": {"mlp_width": 32, "decoding_heads": 2},
    "dflash": {"mlp_width": 32, "num_layers": 1, "taps": (1, 2), "block_size": 4, "anchors": 4},
    "micro": {"micro_steps": 3, "head_size": 200},
}
"""Settings of each part, by its name; behind a stroke stands what is special."""

MAKERS = {
    "language-model": (LanguageModel, Settings),
    "hamburger": (Hamburger, SmashSettings),
    "butler": (Butler, ButlerSettings),
} | {kind: (part, part.kind) for kind, part in KINDS.items()}
DEFAULT = ("eagle", "fsdp=4,tp=2")
"""What runs with every change; the whole matrix by `pytest -m slow -k meshes`."""


def part_of(name):
    """Returns the part of a case, without files."""
    make, kind = MAKERS[name.partition("/")[0]]
    shared = {"batch_size": 8, "length": 16, "steps": 10}
    return make(kind(model=divisible_model().config, optimiser=Optimiser(warmup=1), **(shared | CASES[name])))


def stepped(name, mesh):
    """Returns the loss and the weights after a step.

    Updates are smooth in the gradient, so that what is rounded otherwise stays as little as it was.
    """
    part, on, optimiser = part_of(name), make_mesh(mesh), optax.adamw(1e-2, eps=1e-3)
    shapes = part.shapes()
    params, frozen = (place(wide(filled((None, tree), seed=seed)[1]), on) for seed, tree in enumerate(shapes))
    shardings = param_shardings(jax.eval_shape(lambda p: first_state(p, optimiser), params), on)
    state = jax.jit(lambda p: first_state(p, optimiser), out_shardings=shardings)(params)
    step = make_step(part.objective(), optimiser, on, shardings, accumulate=part.settings.accumulate)
    before = jax.tree.map(np.asarray, state.params)
    state, measured = step(state, place_rows(part.random_batch(), on), frozen or None)
    return jax.tree.map(float, measured), jax.tree.map(np.asarray, state.params), before


def wide(params):
    """Returns frozen weights in float32 too."""
    return jax.tree.map(lambda x: x.astype(jnp.float32), params)


@functools.cache
def alone(name):
    return stepped(name, "data=1")


def of_matrix():
    """Returns every part on every mesh; all but `DEFAULT` are slow."""
    for name in CASES:
        for mesh in MESHES:
            yield pytest.param(name, mesh, marks=() if (name, mesh) == DEFAULT else pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mesh"), [*of_matrix()])
def test_a_step_on_a_mesh_is_that_of_one_device(name, mesh):
    with jax.default_matmul_precision("highest"):
        (measured, params, before), (expected, wanted, _) = stepped(name, mesh), alone(name)
    assert measured.pop("gradient_norm") == pytest.approx(expected["gradient_norm"], rel=1e-4)
    for key, value in measured.items():
        assert value == pytest.approx(expected[key], abs=1e-5), key
    moved = 0.0
    for found, right, old in zip(*map(jax.tree.leaves, (params, wanted, before)), strict=True):
        np.testing.assert_allclose(found, right, atol=1e-5, rtol=0)
        moved = max(moved, float(np.abs(right - old).max()))
    assert moved > 5e-4, "the step must change weights by more than the tolerance for the test to say anything"


def test_every_part_is_in_the_matrix():
    assert {name.partition("/")[0] for name in CASES} == set(PARTS)
