import jax.numpy as jnp
import numpy as np

from jax_smash.cache import Block


def test_an_entry_sees_only_its_own_segment():
    segments = jnp.array([[1, 1, 2, 2, 0]], jnp.int32)
    valid = jnp.array([[True, True, True, True, False]])
    expected = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(Block.causal(valid, segments).mask()[0], np.array(expected, bool))
