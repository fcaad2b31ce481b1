import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval.chips.kernel_calls import CALLS, MOST, recorded
from pallas_kernels.sparse_attention import sparse_attention, tables
from pallas_kernels.sparse_attention.cases import make
from tests.sparse_kernels import named


@pytest.mark.parametrize("name", ["ragged rows", "int8"])
def test_sparse_attention_at_the_most_copies_a_page_for_every_place_of_its_tables(name):
    case = named(name)
    inputs, pages = make(case)
    before = set(CALLS)
    with recorded():
        jax.eval_shape(functools.partial(sparse_attention, **vars(case.options), implementation="tpu"), inputs, pages)
    (key,) = set(CALLS) - before
    most = MOST[key[0]](CALLS[key])
    rows, heads, places = pages.table.shape
    assert most.copied == rows * heads * places * case.page_size * case.slot_bytes
    total, head, block_of = tables.steps(jnp.full((rows, heads), places, jnp.int32), heads, 4, places, 1)
    assert most.steps == total == rows * heads
    for found, expected in zip(most.scalars, (head, block_of), strict=False):
        np.testing.assert_array_equal(found, expected)
