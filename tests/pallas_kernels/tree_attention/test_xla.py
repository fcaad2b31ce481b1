import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.tree_attention import tree_attention
from pallas_kernels.tree_attention.cases import TESTS, make, random_case
from tests.kernels import attended, expected, flip, scribble, tolerance


@pytest.mark.parametrize("case", [*TESTS[::3], *map(random_case, range(2))], ids=lambda case: case.name)
def test_the_xla_path_agrees_with_the_reference(case):
    np.testing.assert_allclose(attended(make(case), case, "xla"), expected(case), **tolerance(case))


def test_a_flipped_bit_changes_its_entry_alone():
    case, inputs = TESTS[1], make(TESTS[1])
    before, after = attended(inputs, case, "xla"), attended(flip(inputs, 4, 0), case, "xla")
    assert np.abs(before - after)[:, 4].max() > 0.01
    np.testing.assert_array_equal(np.delete(before, 4, axis=1), np.delete(after, 4, axis=1))


def test_bits_without_meaning_change_nothing():
    case = next(case for case in TESTS if case.padding < 0)
    inputs = make(case)
    np.testing.assert_array_equal(attended(inputs, case, "xla"), attended(scribble(inputs), case, "xla"))


def test_it_can_be_differentiated():
    case = TESTS[1]

    def total(query, implementation, inputs):
        return jnp.sum(
            jnp.square(tree_attention(inputs._replace(query=query), scale=1.0, implementation=implementation))
        )

    def gradient(implementation, inputs):
        return np.asarray(jax.jit(jax.grad(total), static_argnums=1)(inputs.query, implementation, inputs))

    theirs, ours, wrong = (
        gradient(*of) for of in (("reference", make(case)), ("xla", make(case)), ("xla", flip(make(case), 4, 0)))
    )
    # How much of it is rounding goes by the largest, about 50, and differs from processor to processor.
    largest = np.abs(theirs).max()
    np.testing.assert_allclose(ours / largest, theirs / largest, rtol=0, atol=1e-5)
    assert np.abs(wrong - theirs).max() > 0.01 * largest
