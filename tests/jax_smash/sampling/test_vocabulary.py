import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.pytree import replace
from jax_smash.sampling import highest, likeliest, likeliest_of
from jax_smash.sampling.vocabulary import LANES, PIECE_LOGITS, likeliest_in_pieces, piece_size, together


def drawn(rows, vocab_size, *, kinds=50, seed=0):
    """Returns logits of which many are equal."""
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.integers(0, kinds, (rows, vocab_size)).astype(np.float32) / 7)


def in_pieces(logits, n, piece, *, total=False):
    rows, vocab_size = logits.shape

    def logits_of(start):
        return jax.lax.dynamic_slice_in_dim(logits, start, piece, axis=1)

    return jax.jit(functools.partial(likeliest_in_pieces, logits_of, vocab_size, rows, n, piece=piece, total=total))()


@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize(("vocab_size", "piece"), [(64, 64), (96, 32), (100, 32), (33, 32)])
@pytest.mark.parametrize("kinds", [1, 4, 1000])
def test_pieces_find_what_all_logits_have(n, vocab_size, piece, kinds):
    """Of equal logits the lower token comes first, in whichever piece; the last piece begins before its place."""
    logits = drawn(5, vocab_size, kinds=kinds)
    found = in_pieces(logits, n, piece, total=True)
    values, tokens = jax.lax.top_k(logits, n)
    np.testing.assert_array_equal(found.values, values)
    np.testing.assert_array_equal(found.tokens, tokens)
    np.testing.assert_allclose(found.total, jax.nn.logsumexp(logits, axis=1), rtol=1e-6)
    assert in_pieces(logits, n, piece).total is None


@pytest.mark.parametrize("n", [1, 3])
def test_a_nan_is_the_highest(n):
    logits = drawn(3, 96).at[1, 40].set(jnp.nan).at[2, 7].set(jnp.inf)
    for found in (in_pieces(logits, n, 32), likeliest_of(logits, n)):
        np.testing.assert_array_equal(found.tokens[:, 0], highest(logits))
        np.testing.assert_array_equal(jnp.isnan(found.values[:, 0]), [False, True, False])


def test_all_logits_together_are_those_of_likeliest():
    logits = drawn(4, 4096)
    found, (values, tokens) = likeliest_of(logits, 8, total=True), likeliest(logits, 8)
    np.testing.assert_array_equal(found.values, values)
    np.testing.assert_array_equal(found.tokens, tokens)
    np.testing.assert_allclose(found.total, jax.nn.logsumexp(logits, axis=1), rtol=1e-6)


def test_parts_are_joined_as_if_they_were_one():
    logits = drawn(4, 96, kinds=4).at[2, 50].set(jnp.nan)
    parts = [likeliest_of(logits[:, i : i + 32], 3, total=True) for i in (0, 32, 64)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *parts)
    before = (jnp.arange(3, dtype=jnp.int32) * 32)[:, None, None]
    joined = together(replace(stacked, tokens=stacked.tokens + before))
    whole = likeliest_of(logits, 3, total=True)
    np.testing.assert_array_equal(jnp.isnan(joined.values[:, 0]), [False, False, True, False])
    np.testing.assert_array_equal(joined.tokens[:, 0], whole.tokens[:, 0])
    kept = jnp.array([0, 1, 3])
    np.testing.assert_array_equal(joined.tokens[kept], jax.lax.top_k(logits, 3)[1][kept])
    np.testing.assert_allclose(joined.total[kept], whole.total[kept], rtol=1e-6)


@pytest.mark.parametrize(("vocab_size", "rows"), [(128_256, 640), (49_152, 640), (262_144, 64), (50_000, 100_000)])
def test_a_piece_fits_and_the_pieces_are_of_about_one_size(vocab_size, rows):
    piece = piece_size(vocab_size, rows)
    assert piece is not None
    assert piece % LANES == 0
    assert piece == LANES or piece * rows <= PIECE_LOGITS
    assert -(-vocab_size // piece) * piece - vocab_size < max(piece / 2, LANES * 32)
    assert piece_size(vocab_size, 1) is None
