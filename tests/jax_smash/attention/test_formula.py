import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jax_smash.attention import attend, formula
from jax_smash.attention.formula import FEW_SCORES, QUERIES_AT_ONCE
from jax_smash.cache import EMPTY, Block, Earlier, LayerCache
from jax_smash.pytree import replace
from tests.meshes import sharing_slots

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


def cached(slots, filled):
    """Returns a cache with so many slots filled in each row, and its keys and values as a block has them."""
    _, key, value = entries(slots, seed=1)
    slot = jnp.broadcast_to(jnp.arange(slots, dtype=jnp.int32)[None], (B, slots))
    position = jnp.where(slot < filled, slot, EMPTY)
    return LayerCache(keys=key.transpose(0, 2, 1, 3), values=value.transpose(0, 2, 1, 3), position=position), key, value


@pytest.mark.parametrize("width", [1, 3, 12])
@pytest.mark.parametrize("slots", [5, 64])
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (4, 2.0)])
def test_few_and_many_scores_are_those_of_cache_and_block_side_by_side(width, slots, window, softcap):
    """The fewest are made without a matrix product, and the most with one, of the cache and of the block."""
    rows = width * N // K
    assert (rows * slots <= FEW_SCORES) == (slots == 5 and width < 12)
    assert (rows * width <= FEW_SCORES) == (width < 12)
    query, key, value = entries(width)
    filled = jnp.array([slots - 1, 2], jnp.int32)[:, None]
    cache, past_key, past_value = cached(slots, filled)
    position = filled + jnp.arange(width, dtype=jnp.int32)[None]
    block = Block.causal(jnp.ones((B, width), bool))
    attended = jax.jit(lambda *x: attend(*x, position, cache, block, scale=0.3, window=window, softcap=softcap))
    at = np.concatenate([np.asarray(cache.position), np.asarray(position)], axis=1)[:, None]
    seen = at <= np.asarray(position)[:, :, None]
    if window:
        seen &= at > np.asarray(position)[:, :, None] - window
    side_by_side = (jnp.concatenate(pair, axis=1) for pair in ((past_key, key), (past_value, value)))
    expected = by_hand(query, *side_by_side, seen, scale=0.3, softcap=softcap)
    np.testing.assert_allclose(attended(query, key, value), expected, atol=2e-5)


@pytest.mark.parametrize("filled", [(0, 0), (16, 3), (17, 60), (70, 1)])
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (9, 2.0)])
def test_a_cache_that_is_read_in_tiles_is_attended_to_as_at_once(monkeypatch, filled, window, softcap):
    """The last tile of 70 slots begins before its place; tiles behind the longest row are not read."""
    filled = jnp.asarray(filled, jnp.int32)[:, None]
    cache, _, _ = cached(70, filled)
    unread = (jnp.arange(70) >= -(-int(filled.max()) // 16) * 16)[None, None, :, None]
    block = Block.causal(jnp.ones((B, 5), bool))
    position = filled + jnp.arange(5, dtype=jnp.int32)[None]

    def attended(cache):
        arrays = (*entries(5), position, cache, block)
        return jax.jit(lambda x: attend(*x, scale=0.3, window=window, softcap=softcap))(arrays)

    expected = attended(cache)
    monkeypatch.setattr(formula, "SCORES_AT_ONCE", 16 * B * N * 5)
    monkeypatch.setattr(formula, "LEAST_TILE", 1)
    assert formula._tile((B, K, N // K * 5, H), 70) == 16
    poisoned = replace(
        cache, keys=jnp.where(unread, jnp.nan, cache.keys), values=jnp.where(unread, jnp.nan, cache.values)
    )
    np.testing.assert_allclose(attended(poisoned), expected, atol=2e-6)


@pytest.mark.parametrize("filled", [(0, 0), (64, 3), (17, 50)])
@pytest.mark.parametrize(("window", "softcap", "tile"), [(0, 0.0, None), (9, 2.0, None), (0, 0.0, 8), (9, 2.0, 8)])
def test_a_cache_that_is_divided_by_slots_is_attended_to_as_a_whole(monkeypatch, filled, window, softcap, tile):
    """Some devices have no filled slot, and some queries see none of a device's."""
    if tile:
        monkeypatch.setattr(formula, "SCORES_AT_ONCE", tile * B * N * 5)
        monkeypatch.setattr(formula, "LEAST_TILE", 1)
        assert formula._tile((B, K, N // K * 5, H), 16) == tile
    filled = jnp.asarray(filled, jnp.int32)[:, None]
    cache, _, _ = cached(64, filled)
    block = Block(
        valid=jnp.ones((B, 5), bool), ancestors=jnp.asarray([[[1], [3], [5], [11], [17]]] * B, jnp.uint32)
    )  # A tree.
    depth = jnp.asarray([[0, 1, 1, 2, 1]], jnp.int32)

    def attended(cache):
        return attend(*entries(5), filled + depth, cache, block, scale=0.3, window=window, softcap=softcap)

    shares = replace(cache, over="seq")
    lies = jax.tree.map(lambda x: P(*(None,) * (x.ndim // 2), "seq"), shares)
    apart = jax.shard_map(attended, mesh=sharing_slots(4), in_specs=(lies,), out_specs=P(), check_vma=False)
    np.testing.assert_allclose(jax.jit(apart)(shares), jax.jit(attended)(cache), atol=2e-6)


def test_a_block_goes_on_from_what_earlier_forwards_read():
    width, before = 6, 4
    query, key, value = entries(width)
    filled = jnp.array([3, 7], jnp.int32)[:, None]
    cache, _, _ = cached(16, filled)
    position = filled + jnp.arange(width, dtype=jnp.int32)[None]
    whole = attend(query, key, value, position, cache, Block.causal(jnp.ones((B, width), bool)), scale=0.3)
    earlier = Earlier(block_kv=((key[:, :before], value[:, :before]),), position=position[:, :before])
    block = replace(Block.causal(jnp.ones((B, width), bool)), earlier=earlier)
    together = block.behind_earlier(key[:, before:], value[:, before:], position[:, before:])
    np.testing.assert_allclose(
        attend(query[:, before:], *together, cache, block, scale=0.3), whole[:, before:], atol=2e-6
    )


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
