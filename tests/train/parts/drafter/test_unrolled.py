"""Training-time test beside a drafter that reads each path again, step by step."""

import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.cache import Block
from tests.eagle import random_drafter
from tests.tiny import tiny_model
from train.parts.drafter.unrolled import Past, attended, unrolled

STEPS, LENGTHS = 3, (5, 4)
"""Steps, and the tokens of two documents side by side in a row."""


def row(seed, d):
    """Returns features, vectors, positions and segments of two rows of two documents and padding."""
    rng, total = np.random.default_rng(seed), sum(LENGTHS) + 2
    features, vectors = (jnp.asarray(rng.normal(size=(2, total, d)), jnp.float32) for _ in range(2))
    position = np.concatenate([*map(np.arange, LENGTHS), np.zeros(2, int)]).astype(np.int32)
    segments = np.repeat([1, 2, 0], [*LENGTHS, 2]).astype(np.int32)
    return features, vectors, *(jnp.tile(x, (2, 1)) for x in (position, segments))


def path(model, features, vectors, steps):
    """Returns what the head reads of each step behind the last feature: entries one behind the other, in one block.

    Args:
      features: those of the target, `[T, D]`.
      vectors: of the tokens behind them and of those that are drafted, `[T + steps − 1, D]`.
    """
    hiddens = []
    for _ in range(steps):
        position = jnp.arange(len(features), dtype=jnp.int32)[None]
        block = Block.causal(jnp.ones(position.shape, bool))
        out = model.forward(vectors[None, : len(features)], features[None], position, None, block)
        hiddens.append(out.hidden[0, -1])
        features = jnp.concatenate([features, out.feature[0, -1:]])
    return hiddens


@pytest.mark.parametrize("norms", [{}, {"tap_norms": True, "feeds_normed": True}, {"residual_normed": True}])
def test_steps_are_those_of_a_path_that_is_drafted_one_by_one(norms):
    made = random_drafter(tiny_model(), spread=4.0, **norms)
    model = made.definition.bind(made.params)
    features, vectors, position, segments = row(0, model.config.d_model)
    hidden = unrolled(model, features, vectors, position, segments, STEPS)
    begin = 0
    for length in LENGTHS:
        for entry in (0, 2, length - 1):
            steps = min(STEPS, length - entry)  # Further tokens are in another document.
            its = vectors[1, begin : begin + entry + steps]
            expected = path(model, features[1, begin : begin + entry + 1], its, steps)
            np.testing.assert_allclose(hidden[:steps, 1, begin + entry], expected, rtol=2e-4, atol=2e-4)
        begin += length


def test_a_step_alone_is_the_drafters_forward():
    made = random_drafter(tiny_model())
    model = made.definition.bind(made.params)
    features, vectors, position, segments = row(1, model.config.d_model)
    block = Block.causal(segments > 0, segments)
    whole = model.forward(vectors, features, position, None, block).hidden
    np.testing.assert_array_equal(unrolled(model, features, vectors, position, segments, 1)[0], whole)


def past_of(rng, length, steps):
    """Returns random keys and values of step 0 and of later steps, and a causal mask."""
    shape = (2, length, 2, 8)
    arrays = [rng.normal(size=size).astype(np.float32) for size in (shape, shape, (steps, *shape), (steps, *shape))]
    visible = np.tile(np.tril(np.ones((length, length), bool)), (2, 1, 1))
    return Past(*map(jnp.asarray, arrays), jnp.asarray(visible))


@pytest.mark.parametrize("seed", range(4))
def test_attention_is_a_softmax_over_earlier_entries_and_an_entrys_own_steps(seed):
    rng = np.random.default_rng(seed)
    length, steps, number = int(rng.integers(1, 9)), 5, int(rng.integers(1, 6))
    past = past_of(rng, length, steps)
    query = rng.normal(size=(2, length, 2, 3, 8)).astype(np.float32)
    found = attended(jnp.asarray(query), past, jnp.int32(number))
    for b, t, k, g in np.ndindex(query.shape[:4]):
        keys = [past.key[b, s, k] for s in range(t + 1)] + [past.own_keys[r, b, t, k] for r in range(number)]
        values = [past.value[b, s, k] for s in range(t + 1)] + [past.own_values[r, b, t, k] for r in range(number)]
        scores = np.array(keys, np.float64) @ query[b, t, k, g] * 8**-0.5
        weights = np.exp(scores - scores.max())
        expected = weights / weights.sum() @ np.array(values, np.float64)
        np.testing.assert_allclose(found[b, t, k, g], expected, rtol=1e-4, atol=1e-5)


def test_a_later_token_changes_no_earlier_guess():
    made = random_drafter(tiny_model(), spread=4.0)
    model = made.definition.bind(made.params)
    features, vectors, position, segments = row(2, model.config.d_model)
    place = 4
    other = vectors.at[:, place].add(1.0)
    before, after = (unrolled(model, features, v, position, segments, STEPS) for v in (vectors, other))
    for step in range(STEPS):
        # Step s of entry i reads the vectors up to i + s.
        same = np.all(np.asarray(before[step] == after[step]), axis=(0, 2))
        assert same[: place - step].all()
        assert not same[place - step]
