import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.cache import Block
from jax_smash.smash.fusion_loss import fusion_loss
from tests.smashers import base_of, smasher_of

TOKENS = jnp.array([[7, 8, 9, 10, 11, 12, 13, 14, 20, 21, 22, 0]], jnp.int32)
POSITION = jnp.array([[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 0]], jnp.int32)
SEGMENTS = jnp.array([[1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 0]], jnp.int32)


@pytest.fixture(scope="module")
def measured():
    base, smasher = base_of("llama-windows"), smasher_of("llama-windows")
    loss = jax.jit(lambda t, p, s: fusion_loss(base, smasher, t, p, s, micro_steps=3))(TOKENS, POSITION, SEGMENTS)
    return np.asarray(loss)


@functools.cache
def plainly():
    """Returns compiled: the prediction behind the last of some vectors, and the vector of a group."""
    base, smasher = base_of("llama-windows"), smasher_of("llama-windows")

    @jax.jit
    def predicted(inputs, position, count):
        block = Block.causal(jnp.arange(inputs.shape[1])[None] < count)
        hidden = base.forward(inputs, position, None, block).hidden[:, count - 1]
        return jax.nn.log_softmax(base.unembed(hidden), axis=-1)

    return predicted, jax.jit(lambda vectors, count: smasher.fuse(vectors, count))


def test_a_token_alone_costs_nothing_and_no_group_leaves_its_document(measured):
    loss = measured
    assert loss.shape == (1, 12, 3)
    assert not loss[:, :, 0].any()
    assert np.flatnonzero(np.isinf(loss[0, :, 1])).tolist() == [0, 8, 11]
    assert np.flatnonzero(np.isinf(loss[0, :, 2])).tolist() == [0, 1, 8, 9, 11]
    assert (loss >= 0).all()


@pytest.mark.parametrize(("end", "length"), [(1, 2), (4, 3), (7, 2), (10, 3)])
def test_a_loss_is_what_a_forward_with_that_one_group_fused_loses(measured, end, length):
    predicted, fuse = plainly()
    vectors = np.asarray(jax.jit(base_of("llama-windows").embed)(TOKENS))
    begin = 8 if end >= 8 else 0
    start = end - length + 1

    def log_p(inputs, position):
        """The prediction behind the last input, with padding behind it up to a document's width."""
        behind = ((0, 0), (0, 8 - inputs.shape[1]))
        padded = np.pad(inputs, (*behind, (0, 0))), np.pad(position, behind)
        return np.asarray(predicted(*padded, inputs.shape[1])[0], np.float64)

    position = np.asarray(POSITION)
    group = np.pad(vectors[:, start : end + 1], ((0, 0), (0, 3 - length), (0, 0)))
    fused = np.asarray(fuse(group, jnp.array([length], jnp.int32)))[:, None]
    unfused = log_p(vectors[:, begin : end + 1], position[:, begin : end + 1])
    with_fused = log_p(
        np.concatenate([vectors[:, begin:start], fused], axis=1),
        np.concatenate([position[:, begin:start], position[:, end : end + 1]], axis=1),
    )
    expected = (np.exp(unfused) * (unfused - with_fused)).sum()
    assert expected > 1e-4
    assert measured[0, end, length - 1] == pytest.approx(expected, rel=1e-3, abs=1e-5)
