import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash import cpu
from jax_smash.attention import attend, attend_pages, attend_selected, kernels
from jax_smash.attention.by_head import attend_by_head, hide_other_pages
from jax_smash.cache import EMPTY, Block, ChosenPages, LayerCache, LayerPlan, SelectedLayer
from jax_smash.cache.selected import take_pages
from jax_smash.draft.trees.tree import pack
from jax_smash.planning.topology import devices
from jax_smash.platform import tracing_for
from jax_smash.pytree import replace
from jax_smash.sharding import make_mesh, on_mesh
from jax_smash.sparse import Quest
from jax_smash.sparse.quest import PageBounds

B, K, G, H, S, SIZE = 3, 2, 2, 128, 128, 16
FILLED = (121, 37, 5)
"""The newest page is not full in any row, and the last two rows have no more pages than are read."""


def arrays(*, tree, width=5, dtype=jnp.float32, seed=0):
    """Returns what a forward over ragged rows gives to `attend`, with one entry that is padding."""
    rng = np.random.default_rng(seed)
    query, key, value = (jnp.asarray(rng.normal(size=(B, width, heads, H)), dtype) for heads in (K * G, K, K))
    filled = jnp.asarray(FILLED, jnp.int32)[:, None]
    slot = jnp.broadcast_to(jnp.arange(S, dtype=jnp.int32)[None], (B, S))
    cache = LayerCache(
        keys=jnp.asarray(rng.normal(size=(B, K, S, H)), dtype),
        values=jnp.asarray(rng.normal(size=(B, K, S, H)), dtype),
        position=jnp.where(slot < filled, slot, EMPTY),
    )
    block = Block.causal(jnp.ones((B, width), bool).at[1, -1].set(width == 1))
    depth = jnp.arange(width, dtype=jnp.int32)
    if tree:
        # Every entry but the first is a child of the first.
        seen = jnp.eye(width, dtype=bool).at[:, 0].set(True)
        block = replace(block, ancestors=jnp.broadcast_to(pack(seen), (B, *pack(seen).shape)))
        depth = jnp.minimum(depth, 1)
    return query, key, value, filled + depth[None], cache, block


def chosen(policy, query, cache):
    """Returns a layer of which Quest chooses, and what it chooses."""
    pages = np.asarray(cache.keys, np.float32).reshape(B, K, -1, SIZE, H)
    filled = (np.arange(S) < np.asarray(FILLED)[:, None]).reshape(B, 1, -1, SIZE, 1)
    bounds = PageBounds(
        low=jnp.asarray(np.where(filled, pages, np.inf).min(3), cache.keys.dtype),
        high=jnp.asarray(np.where(filled, pages, -np.inf).max(3), cache.keys.dtype),
    )
    plan = LayerPlan(slots=policy.slots_of(S), least=policy.least, share=None, by_head=None, scale=0.3, softcap=2.0)
    view = SelectedLayer(
        layer=cache, filled=jnp.asarray(FILLED, jnp.int32), alive=None, channels=bounds, policy=policy, plan=plan
    )
    return view, policy.select(view, query[:, 0])


def some_pages(table, counts, filled, size=SIZE):
    """Returns pages that are chosen by hand."""
    table, counts, filled = (jnp.asarray(x, jnp.int32) for x in (table, counts, filled))
    return ChosenPages(table=table, counts=counts, filled=filled, size=size)


@pytest.mark.parametrize(("tree", "width"), [(False, 1), (False, 5), (True, 5)])
def test_pages_that_a_kernel_reads_from_the_cache_give_what_gathered_pages_give(tree, width):
    query, key, value, position, cache, block = arrays(tree=tree, width=width)
    view, selection = chosen(Quest(budget=64, page_size=SIZE), query, cache)
    pages = selection.pages
    assert pages.counts.tolist() == [[4] * K, [3] * K, [1] * K]
    assert pages.table[0, :, 3].tolist() == [FILLED[0] // SIZE] * K, "the newest page is read last"
    assert pages.filled.tolist() == [[3 * SIZE + FILLED[0] % SIZE] * K, [FILLED[1]] * K, [FILLED[2]] * K]
    assert pages.table[0, 0].tolist() != pages.table[0, 1].tolist(), "each KV head must have a set of its own"
    given = (query, key, value, position, cache, pages, block)
    assert kernels.refusal_of_pages("tpu", *given) is None
    by_kernel = functools.partial(kernels.attend_pages, "tpu", scale=0.3, softcap=2.0, interpret=True)
    found = jax.jit(by_kernel)(*given)
    expected, _ = jax.jit(attend_selected)(query, key, value, position, view, block)
    valid = block.valid[:, :, None, None]
    np.testing.assert_allclose(jnp.where(valid, found, 0), jnp.where(valid, expected, 0), atol=2e-5)
    dense = attend(query, key, value, position, cache, block, scale=0.3, softcap=2.0)
    assert np.abs(np.asarray(dense - expected))[0].max() > 1e-2, "what is left out must matter"


@pytest.mark.parametrize(("mesh", "fits"), [(None, False), ("data=2,tp=2", True)])
def test_page_tables_must_fit_where_a_device_has_its_share_of_them(mesh, fits):
    *new, cache, block = arrays(tree=True)
    sets = some_pages([[[2, 5, 7]] * K] * B, [[3] * K] * B, [[41] * K] * B)
    # At least 40 bytes a row: 6 page numbers, and 2 numbers for a block of each head.
    rows = 2**13
    given = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((rows * x.shape[0], *x.shape[1:]), x.dtype), (*new, cache, sets, block)
    )
    found = []
    with on_mesh(None if mesh is None else make_mesh(mesh)):
        jax.eval_shape(lambda *x: found.append(kernels.refusal_of_pages("tpu", *x)), *given)
    assert (found == [None]) is fits
    assert fits or "scalar memory" in found[0]


@pytest.mark.slow
def test_one_set_for_all_heads_is_the_same_set_for_each():
    *new, cache, block = arrays(tree=True)
    shared = some_pages([[[2, 5, 7]], [[0, 2, 1]], [[0, 9, 9]]], [[3], [2], [1]], [[41], [21], [5]])
    each = jax.tree.map(lambda x: jnp.repeat(x, K, axis=1), shared)
    expected = attend_pages(*new, cache, each, block, scale=0.3)
    np.testing.assert_array_equal(attend_pages(*new, cache, shared, block, scale=0.3), expected)
    by_kernel = kernels.attend_pages("tpu", *new, cache, shared, block, scale=0.3, softcap=0.0, interpret=True)
    valid = block.valid[:, :, None, None]
    np.testing.assert_allclose(jnp.where(valid, by_kernel, 0), jnp.where(valid, expected, 0), atol=2e-5)


def test_pages_that_are_not_chosen_may_be_hidden_in_place_of_gathering_the_others():
    query, key, value, position, cache, block = arrays(tree=True)
    _, selection = chosen(Quest(budget=64, page_size=SIZE), query, cache)
    expected = attend_pages(query, key, value, position, cache, selection.pages, block, scale=0.3)
    seen = (cache.keys, cache.values, hide_other_pages(cache.position, selection.pages, K))
    found = attend_by_head(query, key, value, position, seen, block, scale=0.3, softcap=0.0)
    valid = block.valid[:, :, None, None]
    np.testing.assert_allclose(jnp.where(valid, found, 0), jnp.where(valid, expected, 0), atol=2e-5)


def test_each_device_reads_the_pages_of_its_own_heads():
    query, key, value, position, cache, block = arrays(tree=True)
    _, selection = chosen(Quest(budget=64, page_size=SIZE), query, cache)
    given = (query, key, value, position, cache, selection.pages, block)
    by_kernel = jax.jit(functools.partial(kernels.attend_pages, "tpu", scale=0.3, softcap=0.0, interpret=True))
    with on_mesh(make_mesh("tp=2")):
        divided = by_kernel(*given)
    np.testing.assert_array_equal(divided, by_kernel(*given))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"asked": 1}, "the 1 queries must be as many as the block's 5 keys"),
        ({"size": 8}, "page_size must be a power of two from 16 to 128 that divides 128 slots; got 8"),
        ({"width": 64}, "the TPU kernel needs pages of 128 slots at a head width of 64"),
    ],
)
def test_what_the_kernel_cannot_read_is_said(change, why):
    query, key, value, position, cache, block = arrays(tree=True)
    width = change.get("width", H)
    query, key, value = query[:, -change.get("asked", 5) :, :, :width], key[..., :width], value[..., :width]
    cache = replace(cache, keys=cache.keys[..., :width], values=cache.values[..., :width])
    pages = some_pages([[[0, 0]]] * B, [[1]] * B, [[5]] * B, change.get("size", SIZE))
    given = (query, key, value, position, cache, pages, block)
    with pytest.raises(ValueError, match=f"attention by the tpu kernel cannot run: .*{why}"):
        attend_pages(*given, scale=0.3, implementation="tpu")
    attend_pages(*given, scale=0.3)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="compiling for a TPU needs libtpu")
@pytest.mark.xdist_group("tpu")
@pytest.mark.parametrize("implementation", [None, "xla"])
def test_a_tpu_runs_the_kernel_and_gathers_nothing(implementation):
    sharding = jax.sharding.SingleDeviceSharding(devices("v5e:1x1")[0])
    *new, cache, block = arrays(tree=True, dtype=jnp.bfloat16)
    pages = some_pages(np.zeros((B, K, 4)), np.ones((B, K)), np.ones((B, K)))
    given = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), (*new, cache, pages, block)
    )
    run = jax.jit(functools.partial(attend_pages, scale=0.3, implementation=implementation))
    with tracing_for("tpu"):
        text = run.lower(*given).compile().as_text()
    assert ('"sparse_attention' in text or "sparse_attention." in text) == (implementation is None)
    assert ("bf16[3,2,4,16,128]" in text) == (implementation == "xla")


def test_a_gpu_is_given_the_kernel():
    *new, cache, block = arrays(tree=True, dtype=jnp.bfloat16)
    pages = some_pages(np.zeros((B, K, 4)), np.ones((B, K)), np.ones((B, K)))
    given = (*new, cache, pages, block)
    if (why := kernels.refusal_of_pages("gpu", *given)) is not None:
        assert "jax 0.12" in why
        pytest.skip(why)
    with tracing_for("gpu"):
        lowered = jax.jit(functools.partial(attend_pages, scale=0.3)).trace(*given).lower(lowering_platforms=("cuda",))
    assert "mosaic_gpu" in lowered.as_text()


@pytest.mark.parametrize(("rows", "count"), [(1, 2), (1, 7), (2, 4), (3, 5)])
def test_pages_of_few_sets_are_those_that_many_are_gathered_as(rows, count):
    rng = np.random.default_rng(count)
    array = rng.normal(size=(rows, 3, 9 * SIZE, 4)).astype(np.float32)
    table = np.stack([rng.permutation(9)[:count] for _ in range(rows * 3)]).reshape(rows, 3, count).astype(np.int32)
    assert cpu.are_few_sets(jnp.asarray(table), jnp.asarray(array)) == (rows < 3)
    counts = np.full((rows, 3), count)
    found = take_pages(jnp.asarray(array), some_pages(table, counts, counts * SIZE))
    pages = array.reshape(rows, 3, 9, SIZE, 4)
    expected = np.take_along_axis(pages, table[..., None, None], axis=2).reshape(rows, 3, -1, 4)
    np.testing.assert_array_equal(found, expected)


def test_sets_for_more_heads_than_an_array_has_are_refused():
    with pytest.raises(ValueError, match="pages must be of 1 KV heads, as the array, or of 1; got 2"):
        take_pages(jnp.zeros((1, 1, 4 * SIZE, H)), some_pages([[[2, 1]] * 2], [[2] * 2], [[9] * 2]))
