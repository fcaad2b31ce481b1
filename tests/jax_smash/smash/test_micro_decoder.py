import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.cache import Block
from jax_smash.models.layers import Layer
from jax_smash.models.rope import rotation
from jax_smash.smash.micro_decoder import tap_prefix
from tests.smashers import BASES, base_of, smasher_of


def entries(name, *shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(*shape, BASES[name].d_model)).astype(np.float32))


@functools.cache
def compiled(name="llama", **sizes):
    """Returns the decoder with two compiled functions: what it reads token by token, and what it is taught."""
    decoder = smasher_of(name, **sizes).micro_decoder
    return decoder, jax.jit(functools.partial(read_all, decoder)), jax.jit(lambda p, v: decoder.taught(p, v))


def read_all(decoder, prefix, vectors):
    """What a macro-step reads: the prefix with the first token, then a token at a time."""
    cache, hidden = decoder.init_cache(prefix.shape[0]), []
    for i in range(vectors.shape[1]):
        new = vectors[:, i : i + 1]
        out, cache = decoder.read(new if i else jnp.concatenate([prefix, new], axis=1), cache)
        hidden.append(out)
    return jnp.stack(hidden, axis=1), cache


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in ("llama-windows", "qwen2") else n for n in BASES]
)
def test_decoding_a_token_at_a_time_is_what_is_taught(name):
    decoder, read, teach = compiled(name)
    prefix, vectors = entries(name, 3, decoder.taps), entries(name, 3, 3, seed=1)
    hidden, cache = read(prefix, vectors)
    taught = teach(prefix, vectors)
    np.testing.assert_allclose(hidden, taught, rtol=1e-4, atol=1e-4 * float(np.abs(taught).max()))
    assert int(cache.entries) == decoder.slots == decoder.taps + 3


@pytest.mark.parametrize("name", ["gemma2", "all-sliding"])
def test_the_layers_are_the_bases_with_full_attention_from_position_0(name):
    (decoder, _, teach), base = compiled(name), BASES[name]
    prefix, vectors = entries(name, 3, decoder.taps), entries(name, 3, 3, seed=1)
    rope = base.rope_sliding if name == "all-sliding" else base.rope

    @jax.jit
    def by_hand(x):
        position = jnp.broadcast_to(jnp.arange(x.shape[1], dtype=jnp.int32)[None], x.shape[:2])
        angles = rotation(rope, base.head_width, position)
        for layer in decoder.layers:
            assert isinstance(layer, Layer)
            x, _ = layer(x, position, angles, None, Block.causal(jnp.ones(position.shape, bool)))
        return x

    x = by_hand(jnp.concatenate([prefix, vectors], axis=1))
    np.testing.assert_allclose(teach(prefix, vectors), x[:, decoder.taps :], rtol=1e-5, atol=1e-5)


def test_leading_axes_and_remat_change_nothing():
    decoder, _, teach = compiled(micro_layers=1)
    prefix, vectors = entries("llama", 2, 3, 4), entries("llama", 2, 3, 3, seed=1)
    flat = teach(prefix.reshape(6, 4, -1), vectors.reshape(6, 3, -1))
    np.testing.assert_allclose(teach(prefix, vectors).reshape(6, 3, -1), flat, rtol=1e-5, atol=1e-5)

    def loss(vectors, remat):
        return decoder.taught(prefix, vectors, remat=remat).sum()

    plain, again = (jax.jit(jax.grad(functools.partial(loss, remat=remat)))(vectors) for remat in (False, True))
    np.testing.assert_allclose(plain, again, rtol=1e-4, atol=1e-4)


def test_a_later_token_changes_nothing_before_it():
    _, _, teach = compiled()
    prefix, vectors = entries("llama", 3, 4), entries("llama", 3, 3, seed=1)
    changed, before = teach(prefix, vectors.at[:, 2].set(0.0)), teach(prefix, vectors)
    np.testing.assert_array_equal(changed[:, :2], before[:, :2])
    assert np.abs(changed[:, 2] - before[:, 2]).max() > 1e-3


def test_every_tapped_vector_and_every_token_counts():
    _, _, teach = compiled()
    prefix, vectors = entries("llama", 3, 4), entries("llama", 3, 3, seed=1)
    before = teach(prefix, vectors)[:, 2]
    for i in range(4):
        assert np.abs(teach(prefix.at[:, i].set(0.0), vectors)[:, 2] - before).max() > 1e-3
    for i in range(3):
        assert np.abs(teach(prefix, vectors.at[:, i].set(0.0))[:, 2] - before).max() > 1e-3


def test_rows_are_independent():
    decoder, read, _ = compiled("qwen3")
    prefix, vectors = entries("qwen3", 3, decoder.taps), entries("qwen3", 3, 3, seed=1)
    together, _ = read(prefix, vectors)
    for row in range(3):
        alone, _ = read(prefix[row : row + 1], vectors[row : row + 1])
        np.testing.assert_allclose(alone[0], together[row], rtol=1e-4, atol=1e-4)


def test_unused_slots_of_the_cache_are_not_read():
    decoder = smasher_of().micro_decoder
    prefix, vectors = entries("llama", 2, 4), entries("llama", 2, 1, seed=1)
    clean = decoder.init_cache(2)
    dirty = jax.tree.map(lambda x: x if x.ndim == 0 else x + 7.0, clean)
    first, read = jnp.concatenate([prefix, vectors], axis=1), jax.jit(lambda e, c: decoder.read(e, c))
    np.testing.assert_array_equal(read(first, dirty)[0], read(first, clean)[0])


def test_bfloat16_weights_serve_a_float32_base():
    _, read, teach = compiled(dtype=jnp.bfloat16)
    prefix, vectors = entries("llama", 2, 4), entries("llama", 2, 3, seed=1)
    hidden, cache = jax.eval_shape(read, prefix, vectors)
    assert (hidden.dtype, jax.eval_shape(teach, prefix, vectors).dtype) == (jnp.float32, jnp.float32)
    assert cache.keys[0].dtype == jnp.bfloat16


@pytest.mark.parametrize(("tapped", "expected"), [((0, 3), [1, "hidden"]), ((1, 2), [2, 3]), ((3,), ["hidden"])])
def test_a_tap_is_a_layers_output_and_the_last_layers_is_normed(tapped, expected):
    base, smasher = base_of("llama"), smasher_of("llama", tapped_layers=tapped)
    tokens = jnp.array([[5, 9, 2]], jnp.int32)
    position = jnp.arange(3, dtype=jnp.int32)[None]
    forward = jax.jit(lambda t: base.forward(base.embed(t), position, None, Block.causal(t > 0)))
    out = forward(tokens)
    prefix = tap_prefix(smasher.config, out.taps, out.hidden, len(out.taps) - 1)
    assert prefix.shape == (1, 3, len(tapped), 32)
    for i, tap in enumerate(expected):
        np.testing.assert_array_equal(prefix[:, :, i], out.hidden if tap == "hidden" else out.taps[tap])
