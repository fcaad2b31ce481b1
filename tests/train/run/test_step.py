import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax_smash.models.transformer import random_params
from jax_smash.sharding import MeshShape, make_mesh, param_shardings
from tests.tiny import tiny_config
from train.data.rows import Batch
from train.parts.language_model.objective import language_model_objective
from train.run.optimiser import Optimiser
from train.run.step import Tally, TrainState, make_evaluation, make_step, place_rows

ROWS, LENGTH = 8, 24
MESHES = [
    "data=8",
    "data=2,fsdp=2,tp=2",
    *(pytest.param(mesh, marks=pytest.mark.slow) for mesh in ("fsdp=8", "fsdp=4,tp=2", "data=4,tp=2")),
]


def everywhere():
    return make_mesh(MeshShape(data=jax.device_count()))


def squared_error(params, batch):
    inputs, targets, weights = batch
    return (weights * jnp.square(inputs @ params["w"] - targets)).sum(), weights.sum()


def linear_batch():
    inputs = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    return inputs, inputs.sum(1), np.array([1, 1, 0, 0, 1, 0, 1, 1], np.float32)


def state_of(optimiser, params):
    return TrainState(params=params, optimiser=optimiser.init(params), step=jnp.zeros((), jnp.int32))


@pytest.mark.parametrize("mesh", ["data=8", "data=1"])
def test_a_step_equals_plain_gradient_descent(mesh):
    batch, params = linear_batch(), {"w": jnp.ones(3)}

    def loss(params):
        total, count = squared_error(params, batch)
        return total / count

    value, gradient = jax.value_and_grad(loss)(params)
    optimiser = optax.sgd(0.1)
    state, measured = make_step(squared_error, optimiser, make_mesh(mesh))(state_of(optimiser, params), batch)
    np.testing.assert_allclose(state.params["w"], 1 - 0.1 * gradient["w"], rtol=1e-5)
    np.testing.assert_allclose(measured["loss"], value, rtol=1e-5)
    np.testing.assert_allclose(measured["gradient_norm"], optax.tree.norm(gradient), rtol=1e-5)
    assert state.step == 1


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}])
def test_what_is_measured_beside_the_loss_is_averaged_over_all_rows(options):
    batch, params = linear_batch(), {"w": jnp.ones(3)}

    def objective(params, batch):
        total, count = squared_error(params, batch)
        means = {"mean_target": (batch[1].sum(), jnp.float32(batch[1].size)), "none": (jnp.float32(0), jnp.float32(0))}
        return total, Tally(count=count, means=means)

    optimiser, mesh = optax.sgd(0.1), make_mesh("data=2")
    _, plain = make_step(squared_error, optimiser, mesh)(state_of(optimiser, params), batch)
    params = {"w": jnp.ones(3)}
    _, measured = make_step(objective, optimiser, mesh, **options)(state_of(optimiser, params), batch)
    np.testing.assert_allclose(measured.pop("mean_target"), batch[1].mean(), rtol=1e-5)
    assert measured.pop("none") == 0
    for name, value in plain.items():
        np.testing.assert_allclose(measured[name], value, rtol=1e-5)
    other = (batch[0], batch[1] + 1, batch[2])
    sets = {"a": [batch], "b": [batch, other]}
    alone, found = (make_evaluation(o, mesh)({"w": jnp.ones(3)}, sets) for o in (squared_error, objective))
    np.testing.assert_allclose(alone.loss, found.loss, rtol=1e-6)
    assert not alone.means
    np.testing.assert_allclose(found.means["mean_target"], batch[1].mean() + 1 / 3, rtol=1e-5)
    assert found.means["none"] == 0


def test_an_evaluation_weighs_every_target_alike():
    inputs, targets, weights = linear_batch()
    evaluate = make_evaluation(squared_error, everywhere())
    loss, by_set, _ = evaluate(
        {"w": jnp.ones(3) * 2}, {"a": [(inputs, targets, weights)], "none": [(inputs, targets, 0 * weights)]}
    )
    expected = np.average((inputs.sum(1) * 2 - targets) ** 2, weights=weights)
    np.testing.assert_allclose([loss, by_set["a"]], expected, rtol=1e-5)
    assert [*by_set] == ["a"]


def test_an_evaluation_without_targets_is_refused():
    with pytest.raises(ValueError, match="needs at least one target"):
        make_evaluation(squared_error, everywhere())({"w": jnp.ones(3)}, {})


def text_batch(rows=ROWS, length=LENGTH, vocab=60, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, vocab, (rows, length + 1)).astype(np.int32)
    cut = length // 3
    segments = np.where(np.arange(length) < cut, 1, 2).astype(np.int32)[None].repeat(rows, 0)
    segments[0, -4:] = 0
    positions = np.where(np.arange(length) < cut, np.arange(length), np.arange(length) - cut)[None].repeat(rows, 0)
    weights = (segments > 0).astype(np.float32)
    weights[1, :3] = 4
    return Batch(tokens[:, :-1], tokens[:, 1:], positions.astype(np.int32), segments, weights)


def trained(mesh, *, steps=3, accumulate=1, optimiser="adamw", **options):
    """Weights and losses of a few steps of a small transformer."""
    config = dataclasses.replace(tiny_config(), vocab_size=60)
    graphdef, params = random_params(config, 1)
    update = Optimiser(name=optimiser, learning_rate=1e-2, warmup=1).build(10)
    mesh = make_mesh(mesh)
    state = state_of(update, params)
    shardings = param_shardings(state, mesh)
    state = jax.device_put(state, shardings)
    step = make_step(language_model_objective(graphdef, **options), update, mesh, shardings, accumulate=accumulate)
    losses = []
    for seed in range(steps):
        state, measured = step(state, place_rows(text_batch(seed=seed), mesh))
        losses.append(float(measured["loss"]))
    return jax.tree.map(np.asarray, state.params), losses


@pytest.fixture(scope="module")
def alone():
    with jax.default_matmul_precision("highest"):
        return trained("data=1")


@pytest.mark.parametrize("mesh", MESHES)
def test_every_mesh_trains_as_a_single_device_does(alone, mesh):
    with jax.default_matmul_precision("highest"):
        params, losses = trained(mesh)
    np.testing.assert_allclose(losses, alone[1], atol=1e-5, rtol=0)
    for got, wanted in zip(jax.tree.leaves(params), jax.tree.leaves(alone[0]), strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 8},
        {"scan": True, "remat": True},
        {"chunk": 16},
        *(pytest.param(o, marks=pytest.mark.slow) for o in ({"accumulate": 2}, {"remat": True}, {"scan": True})),
    ],
)
def test_what_saves_memory_changes_nothing(alone, options):
    _, losses = trained("data=1", **options)
    np.testing.assert_allclose(losses, alone[1], atol=1e-5, rtol=0)


def test_accumulation_divides_the_rows_of_every_device(alone):
    _, losses = trained("data=4", accumulate=2)
    np.testing.assert_allclose(losses, alone[1], atol=1e-5, rtol=0)


def test_bfloat16_products_keep_float32_weights(alone):
    params, losses = trained("data=1", dtype="bfloat16")
    np.testing.assert_allclose(losses, alone[1], atol=0.05)
    assert losses != alone[1]
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("optimiser", ["muon", pytest.param("adamw", marks=pytest.mark.slow)])
def test_the_loss_of_what_is_seen_again_falls(optimiser):
    config = dataclasses.replace(tiny_config(), vocab_size=60)
    graphdef, params = random_params(config, 1)
    update = Optimiser(name=optimiser, learning_rate=1e-2, warmup=1).build(30)
    step = make_step(language_model_objective(graphdef), update, make_mesh("data=2"))
    state, losses = state_of(update, params), []
    for _ in range(20):
        state, measured = step(state, text_batch())
        losses.append(float(measured["loss"]))
    assert losses[-1] < losses[0] - 1


def test_the_compiled_step_keeps_its_state_in_place():
    config = dataclasses.replace(tiny_config(), vocab_size=60)
    graphdef, params = random_params(config, 1)
    update = Optimiser(warmup=1).build(10)
    mesh = make_mesh("fsdp=2,tp=2")
    state = state_of(update, params)
    shardings = param_shardings(state, mesh)
    state = jax.device_put(state, shardings)
    step = make_step(language_model_objective(graphdef), update, mesh, shardings)
    compiled = step.lower(state, place_rows(text_batch(), mesh)).compile()
    held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state))
    assert compiled.memory_analysis().alias_size_in_bytes >= 0.95 * held


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="divide among 4 devices; got 6 rows"):
        place_rows(text_batch(rows=6), make_mesh("data=2,fsdp=2,tp=2"))
