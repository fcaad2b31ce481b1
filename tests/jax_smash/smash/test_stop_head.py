import jax
import jax.numpy as jnp
import numpy as np

from jax_smash.smash.stop_head import goes_on
from tests.smashers import smasher_of


def test_the_stop_head_is_its_formula():
    head = smasher_of().stop_head
    w = {name: np.asarray(getattr(head, name)[...], np.float64) for name in ("w_in", "w_middle", "w_out")}
    b = {name: np.asarray(getattr(head, name)[...], np.float64) for name in ("b_in", "b_middle", "b_out")}
    hidden = jax.random.normal(jax.random.key(0), (2, 3, 32))
    x = np.asarray(hidden, np.float64)
    for name in ("in", "middle"):
        x = x @ w[f"w_{name}"] + b[f"b_{name}"]
        x = x / (1 + np.exp(-x))
    expected = (x @ w["w_out"] + b["b_out"])[..., 0]
    logits = head(hidden)
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert head(hidden.astype(jnp.bfloat16)).dtype == jnp.float32


def test_a_group_goes_on_where_its_end_is_less_likely_than_the_confidence_leaves():
    stop = jnp.log(jnp.array([0.1, 0.4, 0.6, 0.9]) / jnp.array([0.9, 0.6, 0.4, 0.1]))
    for confidence, expected in ((0.05, [1, 1, 1, 1]), (0.5, [1, 1, 0, 0]), (0.7, [1, 0, 0, 0]), (0.95, [0, 0, 0, 0])):
        assert goes_on(stop, jnp.full((4,), confidence)).tolist() == [bool(x) for x in expected]
