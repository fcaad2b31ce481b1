import functools

import jax
import numpy as np
import pytest

from jax_smash.attention import attend
from jax_smash.cache import EMPTY, Block, LayerCache
from pallas_kernels.tree_attention import cases
from pallas_kernels.tree_attention.cases import TESTS, make
from tests.kernels import attended, expected, parametrised, tolerance


def by_the_library(inputs, case):
    """The library's attention of the same entries over the same cache."""
    cache = LayerCache(keys=inputs.keys, values=inputs.values, position=inputs.slot_position)
    block = Block(valid=inputs.valid, ancestors=inputs.ancestors)
    numbers = {"scale": case.options.scale, "window": case.window, "softcap": case.softcap}
    return attend(inputs.query, inputs.key, inputs.value, inputs.position, cache, block, **numbers)


@pytest.mark.parametrize("case", parametrised(TESTS))
def test_the_reference_is_the_librarys_attention(case):
    inputs = make(case)
    valid = np.asarray(inputs.valid)
    theirs = np.asarray(jax.jit(functools.partial(by_the_library, case=case))(inputs)).astype(np.float32)
    np.testing.assert_allclose(expected(case)[valid], theirs[valid], **tolerance(case))


def test_padding_gets_zeros():
    case = next(case for case in TESTS if case.padding)
    assert (expected(case)[~np.asarray(make(case).valid)] == 0).all()


def test_an_entry_that_sees_nothing_gets_zeros():
    case = next(case for case in TESTS if not any(case.held))
    inputs = make(case)
    out = attended(inputs._replace(ancestors=inputs.ancestors.at[:, 2].set(0)), case, "reference")
    assert (out[:, 2] == 0).all()
    assert (out[:, 1] != 0).any()


def test_an_empty_slot_is_empty_to_the_library_too():
    assert cases.EMPTY == EMPTY
