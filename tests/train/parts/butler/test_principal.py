"""First weights of low-rank predictors, beside the least error that any projections can have."""

import dataclasses

import jax
import numpy as np
import pytest

from jax_smash.models.predictors import predictor_for
from jax_smash.sharding import make_mesh
from tests.predictors import base_model
from tests.train.parts.butler.test_objective import parts, read_rows, rows, settings_of
from train.parts.butler.objective import butler_objective
from train.parts.butler.principal import moments_of, principal_weights


def moments(mesh):
    settings = settings_of("low_rank")
    model = base_model()
    batch = rows() if mesh is None else jax.tree.map(lambda x: np.concatenate([x, x[:1]]), rows())
    return moments_of(model.definition.graphdef, model.params["target"], settings, [batch], mesh or make_mesh("data=1"))


def test_moments_are_those_of_what_a_predictor_may_choose_from():
    heads, batch = read_rows()[1], rows()
    seen = (batch.segments > 0) & (batch.positions >= 4)
    expected_keys = expected_queries = 0.0
    for row in range(len(seen)):
        queries, keys = (np.asarray(x, np.float64)[:, row, seen[row]] for x in (heads.queries, heads.keys))
        keys -= keys.mean(1, keepdims=True)
        by_group = queries.reshape(*queries.shape[:2], keys.shape[2], -1, keys.shape[3])
        expected_keys += np.einsum("LTKH,LTKI->LKHI", keys, keys) / seen.sum()
        expected_queries += np.einsum("LTKGH,LTKGI->LKHI", by_group, by_group) / by_group.shape[3] / seen.sum()
    queries, keys = moments(None)
    np.testing.assert_allclose(queries, expected_queries, rtol=1e-4, atol=1e-5 * expected_queries.max())
    np.testing.assert_allclose(keys, expected_keys, rtol=1e-4, atol=1e-5 * expected_keys.max())


def test_moments_are_the_same_on_many_devices():
    mesh = make_mesh("data=2,fsdp=2")
    for found, other in zip(moments(mesh), moments(make_mesh("data=1,fsdp=1")), strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-4, atol=1e-6 * np.abs(other).max())


def error(of_queries, of_keys, a, b, scale):
    """Returns the mean of (scale · q · k − (q A) · (k B) / √d)², for each KV head."""
    lost = scale * np.eye(a.shape[-2]) - a @ np.swapaxes(b, -1, -2) / a.shape[-1] ** 0.5
    return np.trace(of_queries @ lost @ of_keys @ np.swapaxes(lost, -1, -2), axis1=-2, axis2=-1)


def test_no_projections_lose_less():
    rng = np.random.default_rng(0)
    config = dataclasses.replace(predictor_for("low_rank", base_model().config), head_width=8, width=3)
    drawn = rng.normal(size=(2, 3, 2, 8, 20)) * rng.uniform(0.1, 2, size=(8, 1))
    of_queries, of_keys = (drawn @ np.swapaxes(drawn, -1, -2))[0:2]
    a, b = principal_weights(of_queries, of_keys, config, 0.25, 0)
    assert (np.ptp(a, axis=2) == 0).all()
    a = a[:, :, 0]
    least = error(of_queries, of_keys, a, b, 0.25)
    # What is lost is what lies outside of the directions that are kept.
    value, vector = np.linalg.eigh(of_keys)
    root = (vector * np.sqrt(value)[..., None, :]) @ np.swapaxes(vector, -1, -2)
    outside = np.linalg.eigvalsh(root @ of_queries @ root)[..., :-3].sum(-1)
    np.testing.assert_allclose(least, 0.25**2 * outside, rtol=1e-6)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        for size in (1e-3, 1.0):
            near = [x + size * np.abs(x).mean() * rng.normal(size=x.shape) for x in (a, b)]
            assert (error(of_queries, of_keys, *near, 0.25) > least).all()
    # Of the same weight in each number, so that none is rounded more coarsely than another.
    np.testing.assert_allclose(
        np.trace(np.swapaxes(a, -1, -2) @ of_queries @ a, axis1=-2, axis2=-1),
        np.trace(np.swapaxes(b, -1, -2) @ of_keys @ b, axis1=-2, axis2=-1),
        rtol=1e-6,
    )


@pytest.mark.parametrize("scan", [False, True])
def test_a_run_that_begins_with_them_has_less_to_learn(scan):
    settings = settings_of("low_rank", scan=scan)
    graphdefs, params = parts(settings)
    objective = jax.jit(butler_objective(*graphdefs, settings))
    drawn = float(objective(params, rows())[0])
    found = moments_of(graphdefs[0], params["base"], settings, [rows()], make_mesh("data=1"))
    weights = principal_weights(*found, settings.configs["a"], settings.model.query_scale, 0)
    made = jax.tree.map(lambda x: x, params["butler"]["a"])
    made["w_queries"], made["w_keys"] = (np.asarray(x, np.float32) for x in weights)
    assert float(objective(params | {"butler": {"a": made}}, rows())[0]) < 0.5 * drawn
