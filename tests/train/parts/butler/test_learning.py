"""Predictors learn `tiny`'s own attention in a few dozen steps: better than recency, and than scores out of order."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jax_smash
from jax_smash.models.predictors import importance, random_predictor
from jax_smash.tasks.catalogue import examples
from train.data.rows import Batch
from train.parts.butler import objective as objectives
from train.parts.butler.objective import butler_objective
from train.parts.butler.settings import ButlerSettings
from train.run.optimiser import Optimiser

LENGTH, ROWS, BATCHES, STEPS = 64, 4, 8, 60
SIZES = {
    "per_head": {"width": 8, "hidden": 64},
    "grouped": {"width": 8, "hidden": 64},
    "gate": {"width": 16, "page": 4},
}


@functools.cache
def tiny():
    return jax_smash.load("tiny", dtype=jnp.float32)


@functools.cache
def batches():
    """Rows of stories and questions as `tiny` was trained on; the last are held out."""
    texts = (example.prompt for example in examples("coreference", split="train", seed=0, count=40, length=160))
    tokens = [token for text in texts for token in tiny().encode(text)]
    count = (BATCHES + 1) * ROWS * LENGTH
    assert len(tokens) >= count
    shape = (-1, ROWS, LENGTH)
    position = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), shape[1:])
    ones = np.ones(shape[1:], np.int32)
    weights = ones.astype(np.float32)
    return [Batch(x, x, position, ones, weights) for x in np.asarray(tokens[:count], np.int32).reshape(shape)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "loss"), [("per_head", "logits"), ("grouped", "divergence"), ("gate", "divergence")])
def test_a_short_run_beats_recency_and_scores_out_of_order(kind, loss, monkeypatch):
    model = tiny()
    settings = ButlerSettings(
        model=model.config,
        optimiser=Optimiser(learning_rate=5e-3, warmup=5, weight_decay=0.0),
        batch_size=ROWS,
        length=LENGTH,
        steps=STEPS,
        predictors={"a": {"kind": kind, **SIZES[kind]}},
        loss=loss,
        recall_from=16,
    )
    graphdef, params = random_predictor(settings.configs["a"], 0)
    structures = model.definition.graphdef, {"a": graphdef}
    objective, optimiser = butler_objective(*structures, settings), settings.optimiser.build(STEPS)
    frozen = {"base": model.params["target"]}

    @jax.jit
    def step(params, state, batch):
        gradient, tally = jax.grad(lambda p: objective({**frozen, "butler": {"a": p}}, batch), has_aux=True)(params)
        gradient = jax.tree.map(lambda g: g / tally.count, gradient)
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state, rows = optimiser.init(params), batches()
    first, evaluate = measured(structures, settings, params, frozen, rows[-1])
    for number in range(STEPS):
        params, state = step(params, state, rows[number % BATCHES])
    last = evaluate(params)
    assert last["loss"] < 0.8 * first["loss"]
    assert last["recall"] > last["recent_recall"] + 0.02
    assert last["recall"] > first["recall"]
    # The same scores, each for another entry: chance.
    order = np.random.default_rng(0).permutation(LENGTH // settings.configs["a"].page_size)
    monkeypatch.setattr(objectives, "importance", lambda q, k: importance(q, k)[..., order])
    shuffled, _ = measured(structures, settings, params, frozen, rows[-1])
    assert last["recall"] > shuffled["recall"] + 0.1
    assert shuffled["loss"] > last["loss"]


def measured(structures, settings, params, frozen, batch):
    """Returns loss and recall of held-out rows, and a function that measures them of other parameters."""
    objective = jax.jit(butler_objective(*structures, settings, with_recall=True))

    def evaluate(params):
        total, tally = objective({**frozen, "butler": {"a": params}}, batch)
        means = {name.removeprefix("a "): float(value / of) for name, (value, of) in tally.means.items()}
        assert means["loss"] == pytest.approx(float(total / tally.count))
        return means

    return evaluate(params), evaluate
