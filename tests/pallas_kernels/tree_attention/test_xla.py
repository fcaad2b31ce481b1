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
    # The usual one: without, the softmax is so sharp that a gradient is mostly rounding, and differs by processor.
    scale = case.head_width**-0.5

    def total(query, implementation, inputs):
        inputs = inputs._replace(query=query)
        return jnp.sum(jnp.square(tree_attention(inputs, scale=scale, implementation=implementation)))

    def gradient(implementation, inputs):
        return np.asarray(jax.jit(jax.grad(total), static_argnums=1)(inputs.query, implementation, inputs))

    theirs, ours = (gradient(name, make(case)) for name in ("reference", "xla"))
    np.testing.assert_allclose(ours, theirs, atol=8e-6)
    assert np.abs(gradient("xla", flip(make(case), 4, 0)) - theirs).max() > 1.0
