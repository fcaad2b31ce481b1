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
    return base, smasher, np.asarray(loss)


def test_a_token_alone_costs_nothing_and_no_group_leaves_its_document(measured):
    loss = measured[2]
    assert loss.shape == (1, 12, 3)
    assert not loss[:, :, 0].any()
    assert np.flatnonzero(np.isinf(loss[0, :, 1])).tolist() == [0, 8, 11]
    assert np.flatnonzero(np.isinf(loss[0, :, 2])).tolist() == [0, 1, 8, 9, 11]
    assert (loss >= 0).all()


@pytest.mark.parametrize(("end", "length"), [(1, 2), (4, 3), (7, 2), (10, 3)])
def test_a_loss_is_what_a_forward_with_that_one_group_fused_loses(measured, end, length):
    base, smasher, loss = measured
    start, begin = end - length + 1, 8 if end >= 8 else 0

    @jax.jit
    def predictions(tokens, position):
        """The prediction behind the last token of a document up to there: unfused, and with the group fused."""
        vectors = base.embed(tokens)
        fused = smasher.fuse(vectors[:, start - begin :], jnp.array([length], jnp.int32))

        def predicted(inputs, position):
            block = Block.causal(jnp.ones(position.shape, bool))
            return jax.nn.log_softmax(base.unembed(base.forward(inputs, position, None, block).hidden[:, -1]), axis=-1)

        inputs = jnp.concatenate([vectors[:, : start - begin], fused[:, None]], axis=1)
        kept = jnp.concatenate([position[:, : start - begin], position[:, -1:]], axis=1)
        return predicted(vectors, position), predicted(inputs, kept)

    made = predictions(TOKENS[:, begin : end + 1], POSITION[:, begin : end + 1])
    log_p, log_q = (np.asarray(x[0], np.float64) for x in made)
    expected = (np.exp(log_p) * (log_p - log_q)).sum()
    assert expected > 1e-4
    assert loss[0, end, length - 1] == pytest.approx(expected, rel=1e-3, abs=1e-5)
