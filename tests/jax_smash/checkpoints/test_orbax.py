"""Orbax checkpoints."""

import dataclasses
import json
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.checkpoints import orbax
from jax_smash.checkpoints.huggingface import load_params
from jax_smash.models.families import from_hf
from jax_smash.models.transformer import abstract_params
from tests.checkpoints import CONFIGS, LARGE_TENSORS, write_checkpoint, write_large_checkpoint
from tests.interpreter import PEAK, needs_proc, run

CONFIG = from_hf(CONFIGS["gemma3"])


@pytest.fixture(scope="module")
def params(tmp_path_factory):
    """Random parameters, float32."""
    directory = tmp_path_factory.mktemp("random")
    write_checkpoint(directory, CONFIGS["gemma3"])
    return load_params(directory)[1]


def assert_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_parameters_come_back_bit_by_bit(dtype, params, tmp_path):
    params = jax.tree.map(lambda w: w.astype(dtype), params)
    orbax.save(tmp_path / "out", CONFIG, params)
    assert orbax.is_checkpoint(tmp_path / "out")
    config, graphdef, loaded = orbax.load(tmp_path / "out")
    assert config == CONFIG
    assert graphdef == abstract_params(CONFIG, dtype)[0]
    assert_equal(loaded, params)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_weights_are_cast_as_they_are_read(params, tmp_path):
    orbax.save(tmp_path / "out", CONFIG, params)
    _, _, loaded = orbax.load(tmp_path / "out", dtype=jnp.bfloat16)
    assert_equal(loaded, jax.tree.map(lambda w: w.astype(jnp.bfloat16), params))


def test_parameters_of_another_shape_are_listed(params, tmp_path):
    orbax.save(tmp_path / "out", CONFIG, params)
    file = tmp_path / "out" / "model_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"mlp_width": 97, "qkv_bias": True}))
    with pytest.raises(ValueError, match=r"do not fit its configuration") as caught:
        orbax.load(tmp_path / "out")
    assert "layers.0.mlp.w_down must be [97, 64], got [96, 64]" in str(caught.value)
    assert "missing: layers.0.attention.b_qkv [2, 4, 24]" in str(caught.value)


def test_a_weight_that_is_no_number_is_found(params, tmp_path):
    params = jax.tree.map(lambda w: w, params)
    params["final_norm"]["scale"] = params["final_norm"]["scale"].replace(jnp.full((64,), jnp.nan))
    orbax.save(tmp_path / "out", CONFIG, params)
    with pytest.raises(ValueError, match=r"final_norm.scale in .* holds NaN or infinity"):
        orbax.load(tmp_path / "out")


def test_damage_is_named(params, tmp_path):
    orbax.save(tmp_path / "out", CONFIG, params)
    array = max((p for p in (tmp_path / "out" / "params").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    array.write_bytes(array.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"params is damaged or incomplete") as caught:
        orbax.load(tmp_path / "out")
    assert "\n" not in str(caught.value)
    file = tmp_path / "out" / "model_config.json"
    file.write_text("{}")
    with pytest.raises(ValueError, match=r"model_config.json is damaged or of another version"):
        orbax.load(tmp_path / "out")
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"model_config.json is missing"):
        orbax.load(tmp_path / "out")


def test_nothing_is_written_over(params, tmp_path):
    orbax.save(tmp_path / "out", CONFIG, params)
    before = (tmp_path / "out" / "model_config.json").read_bytes()
    with pytest.raises(FileExistsError, match=r"it has files in it"):
        orbax.save(tmp_path / "out", dataclasses.replace(CONFIG, max_positions=7), params)
    assert (tmp_path / "out" / "model_config.json").read_bytes() == before


def test_a_model_that_hugging_face_has_no_words_for_can_be_kept(params, tmp_path):
    config = dataclasses.replace(CONFIG, attention_softcap=2.0)
    orbax.save(tmp_path / "out", config, params)
    assert orbax.load(tmp_path / "out")[0] == config


@pytest.mark.slow
@needs_proc
def test_memory_holds_one_copy_of_the_weights(tmp_path):
    write_checkpoint(tmp_path / "small", CONFIGS["gemma3"])
    size = write_large_checkpoint(tmp_path / "source", LARGE_TENSORS)
    # The small model first: what the libraries take for themselves is no copy of the weights.
    save = """
    import sys
    from jax_smash.checkpoints import huggingface, orbax

    for name in ("small", "source"):
        config, _ = huggingface.read_config(sys.argv[1] + "/" + name)
        base = peak()
        _, params = huggingface.load_params(sys.argv[1] + "/" + name)
        orbax.save(sys.argv[1] + "/orbax-" + name, config, params)
    print(peak() - base)
    """
    load = """
    import sys
    from jax_smash.checkpoints import orbax

    for name in ("small", "source"):
        base = peak()
        orbax.load(sys.argv[1] + "/orbax-" + name)
    print(peak() - base)
    """
    saved, loaded = (int(run(PEAK + textwrap.dedent(script), tmp_path)) for script in (save, load))
    assert 0.9 * size < saved < 1.2 * size
    # Orbax lets its storage library keep 100 MB, whatever the size of the checkpoint.
    assert 0.9 * size < loaded < 1.2 * size + 100e6


def test_a_damaged_configuration_of_hugging_face_is_named(tmp_path):
    assert orbax.original_config(tmp_path) is None
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is damaged: it must be JSON"):
        orbax.original_config(tmp_path)
