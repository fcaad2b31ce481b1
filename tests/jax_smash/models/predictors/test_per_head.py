import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.cache import Block
from jax_smash.cache.write import Write
from jax_smash.models.families.presets import preset
from jax_smash.models.predictors import PerHeadConfig, abstract_predictor, importance
from tests.predictors import assert_near_where_seen, base_model, causal, predictor_of, read_base


def formula_count(config):
    """The paper's number of parameters, from its sizes."""
    e, r, i = config.d_model, config.reduced, config.hidden
    heads = config.num_layers * config.num_heads * config.width
    return e * r + 3 * r * r + 2 * r + 2 * e + (2 * r * r + 2 * r) + (2 * r * e + e) + 2 * (e * i + i * heads)


def count(config):
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_predictor(config)[1]))


def test_the_papers_sizes_have_the_papers_parameters():
    base = preset("llama-3.2-1b")
    config = PerHeadConfig.for_base(base, hidden=512, width=16)
    assert (config.reduced, config.attach, config.first_layer) == (256, 1, 1)
    assert count(config) == formula_count(config) == 12_393_472
    other = PerHeadConfig.for_base(base, hidden=96, width=8)
    assert count(other) == formula_count(other)


@pytest.mark.parametrize("attach", [0, 2])
def test_scores_of_single_steps_are_those_of_the_masked_forward(attach):
    model = base_model()
    config, predictor = predictor_of(model.config, "per_head", attach=attach)
    taps, heads, position, block = read_base()
    whole = predictor.read(taps, heads, position, block)
    rows, width = position.shape
    one = Block.causal(jnp.ones((rows, 1), bool))

    @jax.jit
    def step(x, at, cache):
        found = predictor.read_entries(x, at, cache, one)
        write = Write(position=at, count=jnp.ones(rows, jnp.int32), path=None)
        return found.queries, found.keys, cache.commit(found.block_kv, write)

    cache, made = predictor.init_cache(rows, width, 1), []
    for t in range(width):
        queries, keys, cache = step(taps[attach][:, t : t + 1], position[:, t : t + 1], cache)
        made.append((queries, keys))
    queries, keys = (jnp.concatenate(column, axis=1) for column in zip(*made, strict=True))
    for layer in range(config.num_layers):
        expected = importance(whole.queries[layer], whole.keys[layer])
        assert_near_where_seen(importance(queries[:, :, layer], keys[:, :, layer]), expected, causal(width))


def test_a_key_that_is_rotated_twice_would_be_seen():
    model = base_model()
    _, predictor = predictor_of(model.config, "per_head")
    taps, heads, position, block = read_base()
    whole = predictor.read(taps, heads, position, block)
    far = predictor.read(taps, heads, position * 2, block)
    right, wrong = (importance(whole.queries[2], x.keys[2]) for x in (whole, far))
    assert float(jnp.abs(right - wrong).max()) > 1e-2 * float(jnp.abs(right).max())


def reference(predictor, x):
    """The formula in NumPy for one text, entry by entry and head by head; returns scores `[L, N, T, T]`."""
    config = predictor.config
    w = {name: np.asarray(getattr(predictor, name)[...], np.float64) for name in vars(predictor) if name[1] == "_"}

    def norm(module, x):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * np.asarray(module.scale[...]) + np.asarray(module.shift[...])

    def rotated(x):
        half = x.shape[-1] // 2
        turn = config.rope_base ** (-np.arange(half) / half)
        angle = np.arange(len(x))[:, None] * turn
        first, second = x[:, :half], x[:, half:]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def silu(x):
        return x / (1 + np.exp(-x))

    x = norm(predictor.input_norm, np.asarray(x, np.float64))
    z = x @ w["w_reduce"]
    out = np.zeros_like(z)
    each = config.reduced // config.reduced_heads
    for head in range(config.reduced_heads):
        part = slice(head * each, (head + 1) * each)
        q, k = (rotated((z @ w[name])[:, part]) for name in ("w_query", "w_key"))
        for t in range(len(z)):
            weights = np.exp(q[t] @ k[: t + 1].T / np.sqrt(each))
            out[t, part] = weights @ (z @ w["w_value"])[: t + 1, part] / weights.sum()
    middle = norm(predictor.reduced_norm, out) @ w["w_middle"] + w["b_middle"]
    erf = np.vectorize(__import__("math").erf)
    x = x + (middle * 0.5 * (1 + erf(middle / np.sqrt(2)))) @ w["w_widen"] + w["b_widen"]
    made = [silu(x @ w[f"w_{name}_in"]) @ w[f"w_{name}_out"] for name in ("queries", "keys")]
    shape = (len(x), config.num_layers, config.num_heads, config.width)
    q, k = (m.reshape(shape) for m in made)
    return np.array(
        [
            [rotated(q[:, i, n]) @ rotated(k[:, i, n]).T / np.sqrt(config.width) for n in range(config.num_heads)]
            for i in range(config.num_layers)
        ]
    )


def test_scores_are_those_of_the_formula():
    model = base_model()
    _, predictor = predictor_of(model.config, "per_head")
    taps, heads, position, block = read_base(rows=1, width=9)
    whole = predictor.read(taps, heads, position, block)
    found = np.stack([importance(q, k)[0, :, 0] for q, k in zip(whole.queries, whole.keys, strict=True)])
    expected = reference(predictor, taps[1][0])
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attach": 3}, "attach must be from 0 to the base's last layer 2; got 3"),
        ({"attach": -1}, "attach must be from 0 to the base's last layer 2; got -1"),
        ({"width": 7}, "width must be even for a rotary embedding; got 7"),
        ({"reduced": 9}, "reduced must be a multiple of 2 heads; got 9"),
        ({"reduced": 6}, "reduced / reduced_heads must be even"),
        ({"hidden": 0}, "hidden must be at least 1; got 0"),
        ({"look_ahead": -1}, "look_ahead must be at least 0; got -1"),
        ({"depth": 2}, "unknown field 'depth' of a predictor 'per_head'"),
        ({"width": 8.0}, "width must be of type int; got 8.0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        predictor_of(base_model().config, "per_head", **changes)
