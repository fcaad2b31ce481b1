import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.sampling import MinP, Temperature, TopK, TopP

NO_PATH = jnp.zeros((1, 1, 0), jnp.int32)


def applied(processor, logits):
    """Applies a processor to logits [B, V] and returns [B, V]."""
    batch, _ = logits.shape
    path = jnp.zeros((batch, 1, 0), jnp.int32)
    return np.asarray(jax.jit(type(processor).apply)(processor, (), jnp.asarray(logits)[:, None], path))[:, 0]


def random_logits(batch=6, vocab_size=50, seed=0):
    return (np.random.default_rng(seed).normal(size=(batch, vocab_size)) * 3).astype(np.float32)


def reference(warper, row):
    torch = pytest.importorskip("torch", reason="transformers' logits processors need torch")
    return warper(torch.zeros((1, 1), dtype=torch.long), torch.from_numpy(row[None].copy()))[0].numpy()


@pytest.fixture
def warpers():
    pytest.importorskip("torch", reason="transformers' logits processors need torch")
    from transformers.generation import logits_process

    return logits_process


def test_temperature_equals_transformers(warpers):
    logits, settings = random_logits(), [0.1, 0.5, 1.0, 1.3, 2.0, 30.0]
    ours = applied(Temperature(temperature=jnp.asarray(settings, jnp.float32)), logits)
    for row, setting in enumerate(settings):
        theirs = reference(warpers.TemperatureLogitsWarper(setting), logits[row])
        np.testing.assert_allclose(ours[row], theirs, rtol=1e-6)


def test_top_k_equals_transformers(warpers):
    logits, settings = np.round(random_logits(), 0), [1, 2, 7, 20, 49, 60]  # Rounded, so that there are ties.
    ours = applied(TopK(k=jnp.asarray(settings, jnp.int32)), logits)
    for row, setting in enumerate(settings):
        np.testing.assert_array_equal(ours[row], reference(warpers.TopKLogitsWarper(setting), logits[row]))


@pytest.mark.parametrize("seed", range(4))
def test_top_p_equals_transformers_where_no_tokens_tie(warpers, seed):
    logits, settings = random_logits(seed=seed), [0.01, 0.3, 0.7, 0.9, 0.99, 0.9999]
    ours = applied(TopP(p=jnp.asarray(settings, jnp.float32)), logits)
    for row, setting in enumerate(settings):
        np.testing.assert_array_equal(ours[row], reference(warpers.TopPLogitsWarper(setting), logits[row]))


def test_min_p_equals_transformers(warpers):
    logits, settings = random_logits(), [0.001, 0.01, 0.1, 0.3, 0.9, 1.0]
    ours = applied(MinP(p=jnp.asarray(settings, jnp.float32)), logits)
    for row, setting in enumerate(settings):
        np.testing.assert_array_equal(ours[row], reference(warpers.MinPLogitsWarper(setting), logits[row]))


def test_settings_that_are_off_change_nothing():
    logits = random_logits(batch=1)
    off = [
        Temperature(temperature=jnp.ones(1)),
        TopK(k=jnp.zeros(1, jnp.int32)),
        TopP(p=jnp.ones(1)),
        MinP(p=jnp.zeros(1)),
    ]
    for processor in off:
        np.testing.assert_array_equal(applied(processor, logits), logits)


def test_at_temperature_0_the_first_of_the_likeliest_tokens_is_left():
    logits = np.array([[1.0, 3.0, 3.0, 2.0], [1.0, 3.0, 3.0, 2.0]], np.float32)
    kept = applied(Temperature(temperature=jnp.array([0.0, 0.5])), logits)
    np.testing.assert_array_equal(kept, [[-np.inf, 3, -np.inf, -np.inf], [2, 6, 6, 4]])


def test_top_p_keeps_all_tokens_that_tie_with_the_last():
    probability = np.array([[0.4, 0.2, 0.2, 0.1, 0.1]])
    kept = applied(TopP(p=jnp.array([0.5])), np.log(probability).astype(np.float32))
    np.testing.assert_array_equal(np.isfinite(kept), [[True, True, True, False, False]])


def test_top_p_stops_at_the_token_that_reaches_p():
    probability = np.array([[0.1, 0.5, 0.15, 0.25]] * 4)
    kept = applied(TopP(p=jnp.array([0.1, 0.49, 0.51, 0.76])), np.log(probability).astype(np.float32))
    np.testing.assert_array_equal(np.isfinite(kept).sum(1), [1, 1, 2, 3])


def test_top_k_is_exact_for_extreme_logits():
    values = [-np.inf, -3e38, -1.0, -1e-30, -0.0, 0.0, 1e-30, 1e-20, 1.0, 3e38]
    logits = np.random.default_rng(0).permuted(np.tile(np.array(values, np.float32), (len(values), 1)), axis=1)
    kept = applied(TopK(k=jnp.arange(1, len(values) + 1, dtype=jnp.int32)), logits)
    for k, (row, ours) in enumerate(zip(logits, kept, strict=True), start=1):
        np.testing.assert_array_equal(ours, np.where(row >= np.sort(row)[-k], row, -np.inf))


def test_a_forbidden_token_is_never_let_in_again():
    logits = np.array([[-np.inf, 1.0, -np.inf, 2.0]], np.float32)
    for processor in (TopK(k=jnp.array([3])), TopP(p=jnp.array([0.999])), MinP(p=jnp.array([0.001]))):
        np.testing.assert_array_equal(applied(processor, logits), logits)


def test_other_settings_compile_nothing_new():
    compiled = jax.jit(lambda p, x: p.apply((), x, NO_PATH))
    for k in (1, 5, 0):
        compiled(TopK(k=jnp.array([k], jnp.int32)), jnp.ones((1, 1, 9)))
    assert compiled._cache_size() == 1
