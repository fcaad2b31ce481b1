import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.attention import QUERIES_AT_ONCE, attend
from jax_smash.cache import Block

B, N, K, H = 2, 4, 2, 8


def entries(width, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.normal(size=(B, width, heads, H)).astype(np.float32)) for heads in (N, K, K))


def by_hand(query, key, value, seen, *, scale, softcap=0.0):
    """Softmax over what is seen, a head and a query at a time, in float64."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    out = np.zeros_like(query)
    for b, t, n in np.ndindex(*query.shape[:3]):
        k, sees = n // (N // K), np.asarray(seen)[b, t]
        scores = key[b, sees, k] @ query[b, t, n] * scale
        scores = softcap * np.tanh(scores / softcap) if softcap else scores
        weights = np.exp(scores - scores.max())
        out[b, t, n] = weights @ value[b, sees, k] / weights.sum()
    return out


@pytest.mark.parametrize("width", [5, QUERIES_AT_ONCE, 2 * QUERIES_AT_ONCE + 9])
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (7, 0.0), (0, 3.0)])
def test_a_block_without_a_past_attends_to_what_it_sees(width, window, softcap):
    position = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (B, width))
    segments = jnp.stack([jnp.zeros(width, jnp.int32), (position[0] >= width // 3).astype(jnp.int32)])
    block = Block.causal(jnp.ones((B, width), bool), segments)
    attended = jax.jit(lambda *x: attend(*x, position, None, block, scale=0.3, window=window, softcap=softcap))
    out = attended(*entries(width))
    seen = np.array(block.mask())
    if window:
        seen &= np.asarray(position)[:, None, :] > np.asarray(position)[:, :, None] - window
    np.testing.assert_allclose(out, by_hand(*entries(width), seen, scale=0.3, softcap=softcap), atol=2e-5)


def test_the_gradient_is_that_of_scores_made_all_at_once():
    width = QUERIES_AT_ONCE + 5
    position = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (B, width))
    block = Block.causal(jnp.ones((B, width), bool))
    seen = block.mask()[:, None, None]

    def at_once(query, key, value):
        query = query.reshape(B, width, K, N // K, H)
        scores = jnp.where(seen, jnp.einsum("BTKGH,BUKH->BKGTU", query, key), jnp.float32(-1e30))
        return jnp.einsum("BKGTU,BUKH->BTKGH", jax.nn.softmax(scores, axis=-1), value).reshape(B, width, N, H)

    def in_pieces(query, key, value):
        return attend(query, key, value, position, None, block, scale=1.0)

    expected, got = (
        jax.jit(jax.grad(lambda *x, f=f: jnp.sum(jnp.square(f(*x))), argnums=(0, 1, 2)))(*entries(width, 1))
        for f in (at_once, in_pieces)
    )
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
