import jax.numpy as jnp
import numpy as np

from jax_smash.cache import Block


def test_an_entry_sees_only_its_own_segment():
    segments = jnp.array([[1, 1, 2, 2, 0]], jnp.int32)
    valid = jnp.array([[True, True, True, True, False]])
    expected = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(Block.causal(valid, segments).mask()[0], np.array(expected, bool))


def test_ancestor_bits_say_who_sees_whom():
    generator = np.random.default_rng(0)
    seen = generator.random((2, 40, 40)) < 0.3
    words = np.zeros((2, 40, 2), np.uint32)
    for row, entry, other in zip(*np.nonzero(seen), strict=True):
        words[row, entry, other // 32] |= np.uint32(1 << (other % 32))
    valid = generator.random((2, 40)) < 0.8
    block = Block(valid=jnp.asarray(valid), ancestors=jnp.asarray(words))
    np.testing.assert_array_equal(block.mask(), seen & valid[:, None, :])
