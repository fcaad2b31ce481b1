"""Medusa-2: heads that are trained together with a target that learns low-rank changes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_smash.cache import Block
from jax_smash.models.medusa import random_medusa
from jax_smash.objectives import summed_cross_entropy
from jax_smash.sharding import make_mesh
from tests.smashers import BASES, base_of
from train.parts.drafter.medusa import changed, joint_objective, medusa_objective
from train.parts.drafter.medusa_settings import MedusaSettings
from train.parts.drafter.rows import random_batch
from train.parts.lora import first_lora
from train.run.optimiser import Optimiser
from train.run.step import STEP, first_state, make_step

BASE = "qwen3"  # Of two layers, with rows of tokens beside the embedding.
MODEL = BASES[BASE]
SETTINGS = MedusaSettings(
    model=MODEL,
    optimiser=Optimiser(learning_rate=0.01, warmup=1),
    batch_size=2,
    length=6,
    steps=8,
    num_heads=2,
    base="lora",
    rank=2,
    targets=("w_qkv", "w_down", "head"),
)


@pytest.fixture(scope="module")
def weights():
    """Structure of a target; its weights, heads that say something, and changes that change nothing, by role."""
    target, base = nnx.split(base_of(BASE))
    heads = random_medusa(SETTINGS.medusa, 3)[1]
    drawn = np.random.default_rng(0)
    heads = jax.tree.map(lambda x: x + jnp.asarray(drawn.normal(0, 0.1, x.shape), x.dtype), heads)
    lora = first_lora(base, SETTINGS.rank, 0, SETTINGS.targets)
    return target, {"base": base, "drafter": heads, "lora": lora}


def some_change(lora, seed=1):
    drawn = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(drawn.normal(0, 0.1, x.shape), x.dtype), lora)


def told(objective, params, batch):
    total, tally = objective(params, batch)
    return float(total), {name: tuple(map(float, pair)) for name, pair in tally.means.items()}


def test_beside_a_target_that_has_not_changed_heads_have_the_loss_of_medusa_1(weights):
    target, params = weights
    batch = random_batch(MODEL.vocab_size, 2, 6)
    alone, means = told(jax.jit(medusa_objective(target, SETTINGS)), params, batch)
    objective = jax.jit(joint_objective(target, SETTINGS, compared=True))
    joint, joint_means = told(objective, params, batch)
    lost, count = joint_means.pop("base_loss")
    assert joint_means.pop("base_loss_before") == pytest.approx((lost, count), rel=1e-6)
    assert joint == pytest.approx(lost + 0.2 * alone, rel=1e-6)
    assert {*joint_means} == {*means}
    for name, pair in means.items():
        assert joint_means[name] == pytest.approx(pair, rel=1e-6), name
    model, tokens, positions = base_of(BASE), jnp.asarray(batch.tokens), jnp.asarray(batch.positions)
    block = Block.causal(jnp.asarray(batch.segments) > 0)
    hidden = model.forward(model.embed(tokens), positions, None, block).hidden
    own = summed_cross_entropy(model.unembed, hidden, jnp.asarray(batch.targets), jnp.asarray(batch.weights))
    assert (lost, count) == pytest.approx(tuple(map(float, own)), rel=1e-5)
    moved, moved_means = told(objective, params | {"lora": some_change(params["lora"])}, batch)
    assert abs(moved - joint) > 1e-2
    assert moved_means["base_loss_before"][0] == pytest.approx(lost, rel=1e-6)
    assert abs(moved_means["base_loss"][0] - lost) > 1e-2


@pytest.mark.slow
def test_what_heads_count_rises_by_a_sine_in_training_alone(weights):
    target, params = weights
    batch, settings = random_batch(MODEL.vocab_size, 2, 6), dataclasses.replace(SETTINGS, heads_ramp=4)
    objective = jax.jit(joint_objective(target, settings))
    whole, means = told(objective, params, batch)
    lost = means["base_loss"][0]
    for step, share in ((0, 0.0), (1, np.sin(np.pi / 8)), (4, 1.0), (9, 1.0)):
        found, _ = told(objective, params | {STEP: jnp.int32(step)}, batch)
        assert found == pytest.approx(lost + share * (whole - lost), rel=1e-5)
    steps = make_step(joint_objective(target, settings), settings.transformation(), make_mesh("data=1"))
    trained = jax.tree.map(jnp.copy, {name: params[name] for name in ("drafter", "lora")})
    state = first_state(trained, settings.transformation())
    losses = []
    for _ in range(2):
        state, measured = steps(state, batch, {"base": params["base"]})
        losses.append(float(measured["loss"]))
    assert losses[0] == pytest.approx(lost / means["base_loss"][1], rel=1e-5)
    assert losses[1] > 1.01 * losses[0]


def test_what_a_target_lost_of_its_old_predictions_is_nothing_at_first_and_then_something(weights):
    target, params = weights
    batch, settings = random_batch(MODEL.vocab_size, 2, 6), dataclasses.replace(SETTINGS, base_labels="target")
    objective = jax.jit(joint_objective(target, settings))
    _, first = told(objective, params, batch)
    _, later = told(objective, params | {"lora": some_change(params["lora"])}, batch)
    assert abs(first["base_loss"][0]) < 1e-4
    assert later["base_loss"][0] > 1e-2


def test_merged_weights_are_the_base_and_its_changes(weights):
    _, params = weights
    lora = some_change(params["lora"])
    merged = dict(nnx.to_flat_state(changed(params | {"lora": lora}, SETTINGS)))
    before = dict(nnx.to_flat_state(params["base"]))
    scale = SETTINGS.alpha / SETTINGS.rank
    a, b = lora["head"]["a"], lora["head"]["b"]  # Its product sums over the second axis.
    np.testing.assert_allclose(
        merged["head",].get_value(), before["head",].get_value() + scale * (a @ b).T, rtol=1e-5, atol=1e-6
    )
    for path, variable in before.items():
        same = np.array_equal(variable.get_value(), merged[path].get_value())
        assert same == (str(path[-1]) not in SETTINGS.targets), path


def test_heads_learn_alone_at_first_then_the_changes_too_and_the_base_never(weights):
    target, params = weights
    settings = dataclasses.replace(SETTINGS, heads_alone=2)
    mesh, optimiser = make_mesh("data=1"), settings.transformation()
    base = jax.tree.map(np.array, params["base"])
    trained = jax.tree.map(jnp.copy, {name: params[name] for name in ("drafter", "lora")})
    state = first_state(trained, optimiser)
    step = make_step(joint_objective(target, settings), optimiser, mesh)
    batch, changes, heads = random_batch(MODEL.vocab_size, 2, 6), [], []
    for _ in range(4):
        state, _ = step(state, batch, {"base": params["base"]})
        changes.append(max(float(jnp.abs(pair["b"]).max()) for pair in state.params["lora"].values()))
        heads.append(np.asarray(state.params["drafter"]["heads"][0]["head"][...]))
    # Each has a step of warm-up, at a learning rate of 0.
    assert [change > 0 for change in changes] == [False, False, False, True]
    assert not np.array_equal(heads[0], heads[1])
    for before, after in zip(jax.tree.leaves(base), jax.tree.leaves(params["base"]), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": "trained"}, "base must be one of frozen, lora; got 'trained'"),
        ({"targets": ["w_qkv", "w_in"]}, "targets must be among w_qkv, w_o, w_gate_up, w_down, head; got 'w_in'"),
        ({"targets": []}, "rank must be at least 1, targets not empty"),
        ({"heads_alone": 7}, "heads_alone must be from 0 to less than the 8 steps without 1 of warm-up; got 7"),
        ({"base_rate": 0}, "base_rate must be above 0 and finite; got 0"),
        ({"alpha": float("inf")}, "alpha must be above 0 and finite; got inf"),
        ({"base_weight": float("nan")}, "base_weight must be at least 0 and finite; got nan"),
        ({"heads_ramp": -1}, "heads_ramp must be at least 0 and finite; got -1"),
        ({"base_labels": "own"}, "base_labels must be one of target, text; got 'own'"),
        ({"base": "frozen", "rank": 32, "heads_ramp": 4}, "targets is of base 'lora', a target that learns; got"),
        ({"states": "float32"}, "states can be kept of a target that stays as it is alone"),
        ({"model": dataclasses.replace(MODEL, tied_head=True)}, "targets must be among .*w_down; got 'head'"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SETTINGS, **changes)
