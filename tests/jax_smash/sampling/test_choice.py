import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jax_smash import sampling
from jax_smash.sampling import (
    SamplingOptions,
    gumbel_noise,
    likeliest,
    log_probabilities,
    process,
    processors_for,
    row_keys,
)
from jax_smash.sampling.choice import highest

choose = jax.jit(sampling.choose, static_argnames="sampled")
FALSE_ALARM = 1e-6
DRAWS = 20_000


def softmax(logits):
    e = np.exp(logits - logits.max())
    return e / e.sum()


def fits(tokens, probability):
    """Whether draws could come from a distribution, by Pearson's test; a token without probability must not occur."""
    counts = np.bincount(np.asarray(tokens).ravel(), minlength=len(probability))
    if counts[probability == 0].any():
        return False
    present = probability > 0
    return stats.chisquare(counts[present], counts.sum() * probability[present]).pvalue > FALSE_ALARM


def draws(logits, keys, positions):
    shape = (*positions.shape, logits.shape[-1])
    return choose(jnp.broadcast_to(jnp.asarray(logits, jnp.float32), shape), keys, positions, sampled=True)


LOGITS = np.random.default_rng(0).normal(size=12) * 2
POSITIONS = jnp.arange(DRAWS, dtype=jnp.int32)


@pytest.mark.parametrize(("rows", "nodes"), [(1, DRAWS), (DRAWS, 1), (200, 100)], ids=["positions", "seeds", "both"])
def test_draws_follow_the_softmax(rows, nodes):
    tokens = draws(LOGITS, row_keys(range(rows)), jnp.tile(POSITIONS[None, :nodes], (rows, 1)))
    assert fits(tokens, softmax(LOGITS))
    assert not fits(tokens, softmax(LOGITS / 1.1))  # The test would notice a temperature that is off by a tenth.


def test_draws_of_neighbouring_places_and_seeds_are_independent():
    logits = LOGITS[:4]
    pair = np.outer(softmax(logits), softmax(logits)).ravel()
    tokens = np.asarray(draws(logits, row_keys([0, 1]), jnp.tile(POSITIONS[None], (2, 1))))
    assert fits(tokens[0] * 4 + tokens[1], pair)
    assert fits(tokens[0, ::2] * 4 + tokens[0, 1::2], pair)
    assert not fits(tokens[0] * 4 + tokens[0], pair)


def processed(options, logits):
    """Returns what the processors for some options make of logits."""

    @jax.jit
    def changed(processors, logits):
        states = [processor.init(len(options), 12) for processor in processors]
        return process(processors, states, logits, jnp.zeros((*logits.shape[:2], 0), jnp.int32))

    return changed(processors_for(options, stop_tokens=[0], vocab_size=12), logits)


def test_draws_follow_processed_logits():
    options = [SamplingOptions(temperature=0.8, top_k=7, top_p=0.97)]
    logits = processed(options, np.tile(LOGITS.astype(np.float32), (1, DRAWS, 1)))
    tokens = choose(logits, row_keys([3]), POSITIONS[None], sampled=True)

    scaled = LOGITS / 0.8
    kept = np.where(scaled >= np.sort(scaled)[-7], scaled, -np.inf)
    ranked = np.argsort(-kept)
    inside = ranked[: np.searchsorted(np.cumsum(softmax(kept)[ranked]), 0.97) + 1]
    expected = softmax(np.where(np.isin(np.arange(12), inside), kept, -np.inf))
    assert 2 < (expected > 0).sum() < 12
    assert fits(tokens, expected)
    assert not fits(tokens, softmax(LOGITS))


def test_noise_depends_on_the_key_and_the_position_alone():
    position = jnp.array([[3, 9, 9, 4], [9, 3, 0, 1]], jnp.int32)
    keys = row_keys([11, 12])
    noise = gumbel_noise(keys, position, 33)
    np.testing.assert_array_equal(noise[0, 1], noise[0, 2])
    for row, node in np.ndindex(2, 4):
        alone = gumbel_noise(keys[row : row + 1], position[row : row + 1, node : node + 1], 33)
        np.testing.assert_allclose(alone[0, 0], noise[row, node], rtol=1e-6, atol=1e-6)
    assert not np.allclose(noise[0, 1], noise[1, 0])
    assert not np.allclose(noise[0, 0], noise[0, 1])


def test_a_row_draws_the_same_alone_and_in_a_batch():
    rng = np.random.default_rng(5)
    logits = jnp.asarray(rng.normal(size=(5, 3, 40)), jnp.float32)
    position = jnp.asarray(rng.integers(0, 99, (5, 3)), jnp.int32)
    keys = row_keys(range(5))
    together = choose(logits, keys, position, sampled=True)
    np.testing.assert_array_equal(sampling.choose(logits, keys, position, sampled=True), together)
    for row in range(5):
        one = slice(row, row + 1)
        for node in range(3):
            alone = choose(logits[one, node : node + 1], keys[one], position[one, node : node + 1], sampled=True)
            assert int(alone[0, 0]) == int(together[row, node])


def test_without_noise_the_first_of_the_likeliest_tokens_is_taken():
    logits = jnp.array([[[0.0, 2.0, 2.0], [5.0, -1.0, 4.0]]])
    position = jnp.zeros((1, 2), jnp.int32)
    np.testing.assert_array_equal(choose(logits, row_keys([0]), position, sampled=False), [[1, 0]])


def test_the_highest_logit_is_the_first_of_its_value_and_not_a_number_before_all():
    inf, nan = np.inf, np.nan
    logits = np.random.default_rng(0).integers(-3, 4, (50, 9)).astype(np.float32)
    odd = [[-inf] * 9, [-inf, inf, 2, inf] + [0] * 5, [1, 7, nan, 7, nan] + [0] * 4, [nan] * 9, [-inf] * 8 + [nan]]
    logits = np.concatenate([logits, np.array(odd, np.float32)])
    found = jax.jit(highest)(logits)
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, np.argmax(logits, axis=-1))


def test_a_greedy_row_takes_no_noise_beside_one_that_samples():
    options = [SamplingOptions(), SamplingOptions(temperature=1.0)]
    logits = processed(options, np.tile(LOGITS.astype(np.float32), (2, 200, 1)))
    tokens = np.asarray(choose(logits, row_keys([0, 1]), jnp.tile(POSITIONS[None, :200], (2, 1)), sampled=True))
    assert (tokens[0] == np.argmax(LOGITS)).all()
    assert len(np.unique(tokens[1])) > 3


def test_a_key_depends_on_its_seed_and_sample_number_alone():
    data = np.asarray(jax.random.key_data(row_keys([5, 7, 5], samples=3)))
    assert data.shape == (9, 2)
    np.testing.assert_array_equal(data[:3], data[6:])
    np.testing.assert_array_equal(data[3:6], jax.random.key_data(row_keys([7], samples=3)))
    np.testing.assert_array_equal(data[3:4], jax.random.key_data(row_keys([7])))
    assert len(np.unique(data, axis=0)) == 6


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(ValueError, match=rf"seed must be from 0 to 4294967295; got {seed}"):
        row_keys([0, seed])


def test_log_probabilities_are_those_of_the_softmax():
    logits = np.random.default_rng(1).normal(size=(3, 30)).astype(np.float32) * 5
    tokens = np.array([4, 29, 0], np.int32)
    chosen, values, ids = log_probabilities(jnp.asarray(logits), jnp.asarray(tokens), 4)
    for row in range(3):
        expected = np.log(softmax(logits[row].astype(np.float64)))
        ranked = np.argsort(-logits[row])[:4]
        np.testing.assert_allclose(chosen[row], expected[tokens[row]], atol=1e-5)
        np.testing.assert_array_equal(ids[row], ranked)
        np.testing.assert_allclose(values[row], expected[ranked], atol=1e-5)


def test_log_probabilities_of_no_likeliest_tokens_are_empty():
    chosen, values, ids = log_probabilities(jnp.zeros((2, 5, 8)), jnp.zeros((2, 5), jnp.int32), 0)
    np.testing.assert_allclose(chosen, np.full((2, 5), -np.log(8)), rtol=1e-6)
    assert values.shape == ids.shape == (2, 5, 0)


def test_more_likeliest_tokens_than_there_are_is_an_error():
    with pytest.raises(ValueError, match="at most 8 tokens; got 9"):
        log_probabilities(jnp.zeros((1, 8)), jnp.zeros(1, jnp.int32), 9)


@pytest.mark.parametrize(
    ("vocab_size", "n"), [(4096, 8), (4096, 40), (32000, 8), (259, 8), (128256, 5), (64, 64), (4096, 0)]
)
def test_the_likeliest_tokens_are_those_of_a_sort(vocab_size, n):
    logits = np.random.default_rng(n).permutation(6 * vocab_size).astype(np.float32).reshape(2, 3, vocab_size)
    values, tokens = jax.jit(likeliest, static_argnums=1)(logits, n)
    order = np.argsort(-np.asarray(logits), axis=-1)[..., :n]
    np.testing.assert_array_equal(tokens, order)
    np.testing.assert_array_equal(values, np.take_along_axis(np.asarray(logits), order, axis=-1))


@pytest.mark.parametrize("vocab_size", [100, 4096, 49152])
def test_of_equal_logits_the_first_are_the_likeliest(vocab_size):
    logits = np.random.default_rng(0).integers(0, 40, (6, vocab_size)).astype(np.float32)
    logits[:, :: vocab_size // 7] = 41.0  # In several pieces.
    logits[:, vocab_size // 2 : vocab_size // 2 + 2] = 42.0, 41.0
    tokens = jax.jit(likeliest, static_argnums=1)(logits, 6)[1]
    np.testing.assert_array_equal(tokens, np.argsort(-logits, axis=-1, stable=True)[:, :6])
