import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.models.projection import LARGE, project


@pytest.mark.parametrize("rows", [(1, 1), (1, 3), (4, 1)])
@pytest.mark.parametrize("out", [(24,), (2, 12), (3, 2, 4)])
@pytest.mark.parametrize("inner", [32, 33, 34])
def test_a_projection_is_the_product_whatever_the_parts(rows, out, inner):
    x, w = (jax.random.normal(jax.random.key(i), s) for i, s in enumerate([(*rows, inner), (inner, *out)]))
    expected = np.tensordot(np.asarray(x, np.float64), np.asarray(w, np.float64), axes=1)
    np.testing.assert_allclose(jax.jit(project)(x, w), expected, rtol=1e-5, atol=1e-5)


def test_a_large_weight_is_read_in_more_parts():
    def batched_dots(inner, width):
        x, w = jnp.zeros((1, 1, inner)), jnp.zeros((inner, width))
        return jax.jit(project).lower(x, w).as_text()

    assert "tensor<2x1x" in batched_dots(64, 64)
    assert "tensor<4x1x" in batched_dots(1024, LARGE // 4096)


def test_half_precision_and_several_rows_make_one_product():
    w = jnp.zeros((64, 64))
    assert "tensor<2x1x" not in jax.jit(project).lower(jnp.zeros((1, 2, 64)), w).as_text()
    half = jnp.zeros((1, 1, 64), jnp.bfloat16)
    assert "tensor<2x1x" not in jax.jit(project).lower(half, w.astype(jnp.bfloat16)).as_text()
