import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.smashers import BASES, base_of
from train.parts.lora import first_lora, merged


def some_lora(params, seed=0):
    """Changes that change something."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.1, x.shape), x.dtype), first_lora(params, 2, 0))


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_new_changes_change_nothing(name):
    params = nnx.split(base_of(name))[1]
    for before, after in zip(
        jax.tree.leaves(params), jax.tree.leaves(merged(params, first_lora(params, 3, 0), 2.0)), strict=True
    ):
        np.testing.assert_array_equal(before, after)


def test_every_matrix_of_the_layers_changes_and_nothing_else():
    params = nnx.split(base_of())[1]
    lora = some_lora(params)
    assert len(lora) == 4 * BASES["llama"].num_layers
    after = dict(nnx.to_flat_state(merged(params, lora, 2.0)))
    for path, variable in nnx.to_flat_state(params):
        changed = bool((variable.get_value() != after[path].get_value()).any())
        assert changed == (path[0] == "layers" and path[-1] in ("w_qkv", "w_o", "w_gate_up", "w_down"))


def test_merged_is_the_product_and_the_changes_product_added():
    params = nnx.split(base_of())[1]
    lora = some_lora(params)
    after = dict(nnx.to_flat_state(merged(params, lora, 3.0)))
    rng = np.random.default_rng(1)
    for name, (path, inputs) in {
        "layers.0.attention.w_qkv": (("layers", 0, "attention", "w_qkv"), (0,)),
        "layers.1.attention.w_o": (("layers", 1, "attention", "w_o"), (0, 1, 2)),
        "layers.3.mlp.w_gate_up": (("layers", 3, "mlp", "w_gate_up"), (1,)),
    }.items():
        before, now = dict(nnx.to_flat_state(params))[path].get_value(), after[path].get_value()
        width = int(np.prod([before.shape[axis] for axis in inputs]))
        before, now = (np.moveaxis(np.asarray(x), inputs, range(len(inputs))).reshape(width, -1) for x in (before, now))
        x = rng.normal(size=(5, width)).astype(np.float32)
        applied = x @ before
        applied += 3.0 * (x @ np.asarray(lora[name]["a"])) @ np.asarray(lora[name]["b"])
        np.testing.assert_allclose(x @ now, applied, rtol=1e-4, atol=1e-5)


def test_changes_are_added_in_float32_whatever_the_matrices_are_in():
    """Each far smaller than a step of a bfloat16 weight, and than what it would be rounded to itself."""
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), nnx.split(base_of())[1])
    lora = jax.tree.map(lambda x: x * jnp.float32(0.1), some_lora(params))
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    after, exact = (dict(nnx.to_flat_state(merged(p, lora, 1.7))) for p in (params, wide))
    for path, variable in after.items():
        assert variable.get_value().dtype == jnp.bfloat16
        np.testing.assert_array_equal(variable.get_value(), exact[path].get_value().astype(jnp.bfloat16))


def test_a_change_has_the_rank_that_was_asked_for():
    params = nnx.split(base_of())[1]
    lora = first_lora(params, 5, 0)
    config = dataclasses.asdict(BASES["llama"])
    change = lora["layers.0.mlp.w_down"]
    assert (change["a"].shape, change["b"].shape) == ((config["mlp_width"], 5), (5, config["d_model"]))
    assert not np.array_equal(first_lora(params, 5, 1)["layers.0.mlp.w_down"]["a"], change["a"])


def test_the_rows_of_tokens_change_where_they_are_asked_for():
    params = nnx.split(base_of())[1]
    lora = first_lora(params, 2, 0, ("w_o", "head"))
    assert {name.split(".")[-1] for name in lora} == {"w_o", "head"}
    vocab, d = params["head"][...].shape
    assert (lora["head"]["a"].shape, lora["head"]["b"].shape) == ((d, 2), (2, vocab))
    with pytest.raises(
        ValueError, match=r"targets of low-rank changes must be among head, w_down, .*; got 'embedding'"
    ):
        first_lora(params, 2, 0, ("embedding",))
