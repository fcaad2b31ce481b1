import functools

import jax
import jax.numpy as jnp
import numpy as np

from jax_smash.cache import Block
from jax_smash.smash.entry import chosen_entry, empty_entry, entry_at, last_entry
from tests.smashers import base_of, smasher_of

TOKENS = jnp.array([[5, 6, 7, 8], [9, 10, 0, 0], [0, 0, 0, 0]], jnp.int32)
VALID = jnp.array([[True] * 4, [True, True, False, False], [False] * 4])


@functools.cache
def read():
    base = base_of()
    position = jnp.broadcast_to(jnp.arange(4, dtype=jnp.int32)[None], TOKENS.shape)
    return jax.jit(lambda t, p, v: base.forward(base.embed(t), p, None, Block.causal(v)))(TOKENS, position, VALID)


def test_an_entry_holds_the_outputs_of_the_tapped_layers():
    smasher, out = smasher_of(tapped_layers=(0, 3)), read()
    entry = entry_at(smasher, out.taps, out.hidden, jnp.array([3, 1, 0], jnp.int32))
    for row, place in enumerate([3, 1, 0]):
        # The output of layer 0 enters layer 1; that of the last layer is read after the final norm.
        np.testing.assert_array_equal(entry.prefix[row, 0], out.taps[1][row, place])
        np.testing.assert_array_equal(entry.prefix[row, 1], out.hidden[row, place])
        np.testing.assert_array_equal(entry.hidden[row], out.hidden[row, place])


def test_the_last_entry_of_the_prompts_is_kept_from_piece_to_piece():
    smasher, out = smasher_of(), read()
    before = entry_at(smasher, out.taps, out.hidden, jnp.zeros((3,), jnp.int32))
    last = last_entry(smasher, before, VALID, out.taps, out.hidden)
    expected = entry_at(smasher, out.taps, out.hidden, jnp.array([3, 1, 0], jnp.int32))
    np.testing.assert_array_equal(last.prefix, expected.prefix)
    np.testing.assert_array_equal(last.hidden[2], before.hidden[2])
    mixed = chosen_entry(jnp.array([True, False, True]), before, expected)
    np.testing.assert_array_equal(mixed.hidden[:2], jnp.stack([before.hidden[0], expected.hidden[1]]))


def test_rows_that_have_read_nothing_have_an_entry_of_the_same_shape():
    smasher, out = smasher_of(), read()
    empty = empty_entry(base_of(), smasher, 3)
    entry = entry_at(smasher, out.taps, out.hidden, jnp.zeros((3,), jnp.int32))
    assert (empty.prefix.shape, empty.hidden.shape) == (entry.prefix.shape, entry.hidden.shape)
    assert empty.prefix.dtype == entry.prefix.dtype
