import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.cpu import FEW_ROWS, HEAD_PARTS, HEAD_ROWS, LARGE, MORE_ROWS, SMALL
from jax_smash.models.projection import project, row_products


def normal(seed, shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


@pytest.mark.parametrize("rows", [(1, 1), (1, 3), (4, 1)])
@pytest.mark.parametrize("out", [(24,), (2, 12), (3, 2, 4)])
@pytest.mark.parametrize("inner", [32, 33, 34])
def test_a_projection_is_the_product_whatever_the_parts(rows, out, inner):
    x, w = normal(0, (*rows, inner)), normal(1, (inner, *out))
    expected = np.tensordot(np.asarray(x, np.float64), np.asarray(w, np.float64), axes=1)
    np.testing.assert_allclose(jax.jit(project)(x, w), expected, rtol=1e-5, atol=1e-5)


def test_a_large_weight_is_read_in_more_parts():
    def batched_dots(inner, width):
        x, w = jnp.zeros((1, 1, inner)), jnp.zeros((inner, width))
        return jax.jit(project).lower(x, w).as_text()

    assert "tensor<2x1x" in batched_dots(64, 64)
    assert "tensor<4x1x" in batched_dots(1024, LARGE // 4096)


def test_four_parts_make_the_product_of_one():
    x, w = normal(0, (1, 1, 1024)), normal(1, (1024, LARGE // 4096))
    expected = np.tensordot(np.asarray(x, np.float64), np.asarray(w, np.float64), axes=1)
    np.testing.assert_allclose(jax.jit(project)(x, w), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [(1, 2), (2, 2), (1, MORE_ROWS), (1, MORE_ROWS + 1)])
def test_several_rows_have_the_product_that_each_has_alone(rows):
    x, w = normal(0, (*rows, 64)), normal(1, (64, 4, 8))
    expected = np.tensordot(np.asarray(x, np.float64), np.asarray(w, np.float64), axes=1)
    np.testing.assert_allclose(jax.jit(project)(x, w), expected, rtol=1e-4, atol=1e-4)


def test_only_a_few_rows_meet_a_large_weight_one_by_one():
    def by_row(rows, width):
        lowered = jax.jit(project).lower(jnp.zeros((1, rows, 1024)), jnp.zeros((1024, width)))
        return "x1x512xf32" in lowered.as_text() or "x1x256xf32" in lowered.as_text()

    assert by_row(MORE_ROWS, SMALL // 4096)
    assert not by_row(MORE_ROWS, SMALL // 4096 + 64)
    assert by_row(FEW_ROWS, SMALL // 4096 + 64)


def test_half_precision_and_many_rows_make_one_product():
    w = jnp.zeros((64, 64))
    assert "tensor<2x1x" not in jax.jit(project).lower(jnp.zeros((1, MORE_ROWS + 1, 64)), w).as_text()
    half = jnp.zeros((1, 1, 64), jnp.bfloat16)
    assert "tensor<2x1x" not in jax.jit(project).lower(half, w.astype(jnp.bfloat16)).as_text()


@pytest.mark.parametrize("batch", [(), (1,), (1, 1), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("tokens", [64, 66])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_row_products_are_the_product_with_every_row(batch, tokens, dtype):
    x, table = normal(0, (*batch, 32)).astype(dtype), normal(1, (tokens, 32)).astype(dtype)
    found = jax.jit(row_products)(x, table)
    assert found.dtype == jnp.float32
    expected = np.asarray(x, np.float64) @ np.asarray(table, np.float64).T
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_only_a_few_float32_vectors_are_multiplied_in_parts():
    def in_parts(batch, dtype):
        lowered = jax.jit(row_products).lower(jnp.zeros((batch, 32), dtype), jnp.zeros((64, 32), dtype))
        return f"tensor<{HEAD_PARTS}x{64 // HEAD_PARTS}x32x" in lowered.as_text()

    assert in_parts(1, jnp.float32)
    assert in_parts(HEAD_ROWS, jnp.float32)
    assert not in_parts(HEAD_ROWS + 1, jnp.float32)
    assert not in_parts(1, jnp.bfloat16)
