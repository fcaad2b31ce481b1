"""What an EAGLE-1 drafter is trained on, written out in NumPy, and the noise of its features."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.cache import Block
from tests.eagle1 import random_drafter1
from tests.tiny import tiny_config, tiny_model
from train.data.rows import Batch
from train.parts.drafter.beside import drafted_in_a_row
from train.parts.drafter.eagle1 import Eagle1Part, eagle1_objective, noised
from train.parts.drafter.settings import Eagle1Settings
from train.run.optimiser import Optimiser
from train.run.step import Measured

SETTINGS = Eagle1Settings(
    model=tiny_config(), optimiser=Optimiser(warmup=1), steps=4, batch_size=2, length=7, noise=0.0, reply_begins=""
)


def batch(seed=0):
    """Returns two rows of documents and padding, of which some targets count."""
    rng = np.random.default_rng(seed)
    segments = np.array([[1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]], np.int32)
    positions = np.array([[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 4, 0, 0]], np.int32)
    tokens = rng.integers(0, SETTINGS.model.vocab_size, (2, 8)).astype(np.int32)
    weights = (rng.integers(0, 2, (2, 7)) * (segments > 0)).astype(np.float32)
    return Batch(tokens[:, :-1], tokens[:, 1:], positions, segments, weights)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def test_the_loss_is_the_features_distance_and_a_tenth_of_the_cross_entropy():
    model, given = tiny_model(), batch()
    made = random_drafter1(model, spread=3.0)
    params = {"base": model.params["target"], "drafter": made.params}
    loss, told = jax.jit(eagle1_objective(model.definition.graphdef, SETTINGS))(params, given)
    target, drafter = model.definition.bind(params["base"]), made.definition.bind(made.params)
    block = Block.causal(jnp.asarray(given.segments > 0), jnp.asarray(given.segments))
    position = jnp.asarray(given.positions)
    read = target.forward(target.embed(jnp.asarray(given.tokens)), position, None, block)
    guessed = drafter.forward(target.embed(jnp.asarray(given.targets)), read.hidden, position, None, block).hidden
    hidden, logits = np.asarray(read.hidden, np.float64), np.asarray(target.unembed(read.hidden), np.float64)
    said, guessed = np.asarray(target.unembed(guessed), np.float64), np.asarray(guessed, np.float64)
    expected = count = distance = top = 0.0
    for row, place in np.ndindex(2, 7):
        # The entry before guesses the target's hidden state of this one.
        if place and given.segments[row, place - 1] == given.segments[row, place] > 0:
            weight = given.weights[row, place]
            away = np.abs(guessed[row, place - 1] - hidden[row, place])
            smooth = np.where(away < 1, away**2 / 2, away - 0.5).mean()
            p, q = softmax(logits[row, place]), softmax(said[row, place - 1])
            expected += weight * (smooth - 0.1 * p @ np.log(q))
            count, distance = count + weight, distance + weight * smooth
            top += weight * (p.argmax() in np.argsort(-q)[:3])
    assert count > 3
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(told.count, count)
    np.testing.assert_allclose(told.means["distance_1"], (distance, count), rtol=1e-4)
    np.testing.assert_allclose(told.means["top3_1"], (top, count))


def test_depths_that_are_not_trained_are_told_choose_a_step_and_cost_nothing():
    model, given = tiny_model(), batch()
    params = {"base": model.params["target"], "drafter": random_drafter1(model, spread=3.0).params}
    structure = model.definition.graphdef
    loss, told = jax.jit(eagle1_objective(structure, SETTINGS))(params, given)
    same, more = jax.jit(eagle1_objective(structure, SETTINGS, depths=3))(params, given)
    np.testing.assert_allclose((same, more.count), (loss, told.count), rtol=1e-6)
    for name, mean in told.means.items():
        np.testing.assert_allclose(more.means[name], mean, rtol=1e-6, err_msg=name)
    assert "top1_2" not in told.means
    for objective in (Eagle1Part(SETTINGS).evaluated(), Eagle1Part(SETTINGS).measured()):
        _, found = jax.eval_shape(objective, params, given)
        assert {f"top1_{depth}" for depth in range(1, 5)} < {*found.means}
    # What is right at depth 2 as well is chosen.
    one, both = (Measured(0.0, {}, {"top1_1": 0.5, "top1_2": second}) for second in (0.1, 0.4))
    assert drafted_in_a_row(one) < drafted_in_a_row(both)


def test_a_drafter_beside_a_frozen_target_takes_no_remat():
    with pytest.raises(ValueError, match="remat says nothing of a drafter whose target is frozen"):
        dataclasses.replace(SETTINGS, remat=True)


def test_a_loop_over_layers_that_are_not_run_is_refused():
    assert dataclasses.replace(SETTINGS, scan=True).scan
    with pytest.raises(ValueError, match="scan says nothing of a drafter whose target's states are kept on disk"):
        dataclasses.replace(SETTINGS, scan=True, states="kept")


def test_weights_are_measured_by_the_cross_entropy_alone_and_without_noise():
    measured = dataclasses.replace(SETTINGS, noise=0.2).measured()
    assert (measured.feature_share, measured.prediction_share, measured.noise) == (0.0, 1.0, 0.0)


def test_noise_is_less_in_longer_documents_and_depends_on_the_rows_tokens_and_the_seed_alone():
    given, hidden = batch(), jnp.zeros((2, 7, 4096), jnp.float32)
    drawn = np.asarray(noised(hidden, given, 0.2, 1))
    # Documents of 4 and 3 tokens in the first row.
    for piece, tokens in ((drawn[0, :4], 4), (drawn[0, 4:], 3), (drawn[1, :5], 5)):
        most = 0.5 * 0.2 * 512 / tokens
        assert 0.99 * most < np.abs(piece).max() <= most
        np.testing.assert_allclose(piece.std(), most / np.sqrt(3), rtol=0.02)
    np.testing.assert_array_equal(drawn, noised(hidden, given, 0.2, 1))
    turned = Batch(*(np.asarray(x)[::-1] for x in given))
    np.testing.assert_array_equal(drawn[::-1], noised(hidden, turned, 0.2, 1))
    assert (drawn != np.asarray(noised(hidden, given, 0.2, 2))).any()
    assert np.abs(np.corrcoef(drawn[0, :4].ravel(), drawn[1, :4].ravel())[0, 1]) < 0.05
    np.testing.assert_array_equal(noised(hidden + 1, given, 0.0, 1), hidden + 1)
