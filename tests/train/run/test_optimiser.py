import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax_smash.models.medusa import MedusaConfig, abstract_medusa
from jax_smash.models.transformer import abstract_params
from tests.tiny import tiny_config
from train.parts.lora import first_lora
from train.run.optimiser import Optimiser, _names, decayed


def test_matrices_decay_and_norms_and_biases_do_not():
    config = tiny_config(qkv_bias=True, mlp_bias=True, output_bias=True, qk_norm=True)
    _, params = abstract_params(config)
    marks = jax.tree_util.tree_flatten_with_path(decayed(params))[0]
    by_name = {jax.tree_util.keystr(path, simple=True, separator="/"): mark for path, mark in marks}
    assert {name.split("/")[-2 if name.endswith("value") else -1] for name, mark in by_name.items() if mark} == {
        "embedding", "head", "w_qkv", "w_o", "w_gate_up", "w_down",
    }  # fmt: skip
    assert len(by_name) > sum(by_name.values()) > 0


def test_matrices_of_drafters_and_low_rank_changes_decay_too():
    heads = abstract_medusa(MedusaConfig(vocab_size=30, d_model=8, num_heads=1))[1]
    target = abstract_params(tiny_config())[1]
    lora = jax.eval_shape(lambda: first_lora(target, rank=2, seed=0, targets=("w_o", "head")))
    params = {"medusa": heads, "chimera": {"heads": 0, "scale": 0}, "lora": lora}
    marks = jax.tree_util.tree_flatten_with_path(decayed(params))[0]
    by_name = {"/".join(_names(path)): mark for path, mark in marks}
    assert {name for name, mark in by_name.items() if not mark} == {"medusa/heads/0/blocks/0/b", "chimera/scale"}
    assert {"medusa/heads/0/blocks/0/w", "lora/layers.0.attention.w_o/a", "lora/head/b"} < {*by_name}


def test_the_learning_rate_rises_to_the_peak_and_falls_to_its_share():
    schedule = Optimiser(learning_rate=1e-2, warmup=10, final=0.1).schedule(100)
    rates = np.array([schedule(step) for step in range(101)])
    np.testing.assert_allclose(rates[[0, 5, 10, 55, 100]], [0, 5e-3, 1e-2, 5.5e-3, 1e-3], rtol=1e-4, atol=1e-9)
    assert rates.argmax() == 10


def test_a_parameter_without_gradient_shrinks_only_where_it_decays():
    optimiser = Optimiser(learning_rate=0.5, warmup=0, weight_decay=0.1).build(10)
    params = {"w_o": jnp.ones((2, 2)), "scale": jnp.ones(2)}
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = optimiser.update(jax.tree.map(jnp.zeros_like, params), optimiser.init(params), params)
    np.testing.assert_allclose(updates["w_o"], -0.05 * np.ones((2, 2)), rtol=1e-6)
    np.testing.assert_array_equal(updates["scale"], np.zeros(2))


def test_a_gradient_is_clipped_by_its_norm_or_by_each_value():
    gradients = {"scale": jnp.array([3.0, -4.0, 0.1])}
    by_norm, by_value = ({"clip": 1.0}, [3 / 5.001, -4 / 5.001, 0.1 / 5.001]), ({"clip_value": 0.5}, [0.5, -0.5, 0.1])
    for clip, expected in (by_norm, by_value):
        found, _ = Optimiser(**clip)._clipped().update(gradients, optax.EmptyState())
        np.testing.assert_allclose(found["scale"], expected, rtol=1e-3)


def test_beside_muon_vectors_take_their_share_of_the_learning_rate():
    params = {"w_down": jnp.ones((4, 4)), "embedding": jnp.ones((4, 4)), "scale": jnp.ones(4)}
    gradients = jax.tree.map(lambda x: jax.random.normal(jax.random.key(1), x.shape) + 1, params)

    def first_update(share):
        optimiser = Optimiser(name="muon", learning_rate=0.1, vector_share=share, warmup=0).build(10)
        with jax.numpy_dtype_promotion("standard"):
            return optimiser.update(gradients, optimiser.init(params), params)[0]

    whole, tenth = first_update(1.0), first_update(0.1)
    np.testing.assert_allclose(tenth["w_down"], whole["w_down"])
    for name in ("embedding", "scale"):
        np.testing.assert_allclose(tenth[name], 0.1 * whole[name], rtol=1e-5)


def test_a_run_no_longer_than_its_warm_up_is_refused():
    with pytest.raises(ValueError, match="steps must exceed the 100 steps of warm-up; got 100"):
        Optimiser().build(100)


@pytest.mark.parametrize(
    "field",
    [
        {"learning_rate": 0.0},
        {"learning_rate": float("inf")},
        {"learning_rate": float("nan")},
        {"warmup": -1},
        {"final": 1.5},
        {"clip": 0.0},
        {"vector_share": 0.0},
        {"vector_share": float("inf")},
        {"b1": 3},
        {"b1": -0.1},
        {"b2": 1.0},
        {"weight_decay": -5},
        {"weight_decay": float("inf")},
    ],
)
def test_a_setting_out_of_range_is_refused(field):
    with pytest.raises(ValueError, match="expected learning_rate"):
        Optimiser(**field)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_groups_learn_at_their_shares_of_the_rate_and_one_of_none_stays(name):
    group = {"w_down": jnp.ones((4, 4)), "embedding": jnp.ones((4, 4)), "scale": jnp.ones(4)}
    # An embedder's w_o has other axes than a layer's.
    params = {"all": group | {"w_o": jnp.ones((2, 2, 4))}, "half": group, "none": group}
    gradients = jax.tree.map(lambda x: jax.random.normal(jax.random.key(1), x.shape) + 1, params)
    optimiser = Optimiser(name=name, learning_rate=0.1, warmup=0).build_groups(10, {"all": 1, "half": 0.5, "none": 0})
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = optimiser.update(gradients, optimiser.init(params), params)
    for field in group:
        np.testing.assert_allclose(updates["half"][field], 0.5 * updates["all"][field], rtol=1e-5)
        assert np.abs(updates["half"][field]).min() > 0
        np.testing.assert_array_equal(updates["none"][field], np.zeros_like(group[field]))
