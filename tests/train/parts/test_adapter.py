"""Low-rank changes as an adapter: what is loaded with it is the base with its changes."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_smash.checkpoints.adapter import read_adapter
from jax_smash.checkpoints.huggingface import load_params, save_params
from tests.smashers import BASES, base_of
from train.parts.adapter import write_adapter
from train.parts.lora import MATRICES, first_lora, merged


@pytest.mark.parametrize(("name", "targets"), [("llama", MATRICES), ("qwen3", ("w_qkv", "w_down", "head"))])
def test_a_base_loaded_with_its_adapter_is_the_base_with_its_changes(tmp_path, name, targets):
    params, config = nnx.split(base_of(name))[1], BASES[name]
    drawn = np.random.default_rng(0)
    lora = first_lora(params, 2, 0, targets)
    lora = jax.tree.map(lambda x: jnp.asarray(drawn.normal(0, 0.1, x.shape), x.dtype), lora)
    save_params(tmp_path / "base", config, params)
    (tmp_path / "run/adapter").mkdir(parents=True)
    write_adapter(tmp_path / "run/adapter", tmp_path / "base", config, lora, alpha=6.0)
    found = read_adapter(tmp_path / "run/adapter")
    assert found.base == "../../base"
    assert found.ranks == (2,)
    loaded = dict(nnx.to_flat_state(load_params(tmp_path / "base", adapter=found)[1]))
    before = dict(nnx.to_flat_state(params))
    for path, variable in nnx.to_flat_state(merged(params, lora, 3.0)):
        np.testing.assert_allclose(loaded[path].get_value(), variable.get_value(), rtol=1e-5, atol=1e-6)
        assert (str(path[-1]) in targets) != np.array_equal(loaded[path].get_value(), before[path].get_value())
    modules = json.loads((tmp_path / "run/adapter/adapter_config.json").read_text())["target_modules"]
    assert {"q_proj", "k_proj", "v_proj", "down_proj"} <= {*modules}
    assert ("lm_head" in modules) == ("head" in targets)
