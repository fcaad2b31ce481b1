import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.sparse_attention import Pages
from pallas_kernels.sparse_attention.cases import TESTS, make
from pallas_kernels.tree_attention import Inputs, tree_attention
from tests.kernels import tolerance
from tests.sparse_kernels import attended, expected, named


def dequantised(inputs, pages):
    if pages.scales is None:
        return inputs
    scaled = {
        name: pages.scales[:, :, i, :, None] * getattr(inputs, name).astype(jnp.float32)
        for i, name in enumerate(("keys", "values"))
    }
    return inputs._replace(**scaled)


def by_masking(inputs, pages, case):
    """The whole cache attended to by each KV head alone, what it did not choose hidden by its position."""
    outs = []
    inputs = dequantised(inputs, pages)
    group = case.heads // case.kv_heads
    for k in range(case.kv_heads):
        chosen = np.zeros((len(case.held), case.slots), bool)
        for b, sets in enumerate(np.asarray(pages.table)):
            which = 0 if case.shared else k
            for page in sets[which, : pages.counts[b, which]]:
                chosen[b, page * case.page_size : (page + 1) * case.page_size] = True
        one = slice(k, k + 1)
        alone = Inputs(
            query=inputs.query[:, :, k * group : (k + 1) * group],
            key=inputs.key[:, :, one],
            value=inputs.value[:, :, one],
            position=inputs.position,
            valid=inputs.valid,
            ancestors=inputs.ancestors,
            keys=inputs.keys[:, one],
            values=inputs.values[:, one],
            slot_position=jnp.where(chosen, inputs.slot_position, 2**30),
        )
        options = {"scale": case.options.scale, "window": case.window, "softcap": case.softcap}
        outs.append(jax.jit(functools.partial(tree_attention, **options, implementation="reference"))(alone))
    return np.asarray(jnp.concatenate(outs, axis=2)).astype(np.float32)


@pytest.mark.parametrize("case", TESTS[2::4], ids=lambda case: case.name)
def test_the_reference_is_the_whole_cache_with_the_rest_masked(case):
    inputs, pages = make(case)
    np.testing.assert_allclose(expected(case), by_masking(inputs, pages, case), **tolerance(case))


def test_one_page_less_is_another_result():
    case = named("ragged rows")
    inputs, pages = make(case)
    fewer = pages._replace(counts=pages.counts.at[0, 0].add(-1))
    assert np.abs(attended(inputs, fewer, case, "reference") - expected(case))[0].max() > 0.01


@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_every_page_in_any_order_is_tree_attention(implementation):
    case = named("a window over a cache gone round")
    inputs, _ = make(case)
    pages = case.slots // case.page_size
    shape = (len(case.held), case.kv_heads)
    order = np.random.default_rng(3).permuted(
        np.broadcast_to(np.arange(pages, dtype=np.int32), (*shape, pages)), axis=2
    )
    all_of_them = Pages(jnp.asarray(order), jnp.full(shape, pages, jnp.int32))
    options = {"scale": case.options.scale, "window": case.window, "softcap": case.softcap}
    whole = tree_attention(inputs, **options, implementation="reference")
    np.testing.assert_allclose(attended(inputs, all_of_them, case, implementation), whole, **tolerance(case))


def test_a_shared_set_is_the_same_set_for_every_head():
    case = named("a shared set")
    inputs, pages = make(case)
    each = jax.tree.map(lambda x: jnp.repeat(x, case.kv_heads, axis=1), pages)
    np.testing.assert_array_equal(attended(inputs, each, case, "reference"), expected(case))


def test_padding_gets_zeros():
    case = named("padding between")
    assert (expected(case)[~np.asarray(make(case)[0].valid)] == 0).all()
