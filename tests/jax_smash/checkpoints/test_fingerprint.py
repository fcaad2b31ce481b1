"""The same weights have one fingerprint however they are stored, and others another."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from jax_smash.checkpoints import huggingface, orbax
from jax_smash.checkpoints.fingerprint import SAMPLE, Fingerprint, fingerprint, sampled_places
from jax_smash.loading import load
from jax_smash.quantise import quantise_params
from jax_smash.sharding import make_mesh, place
from tests.checkpoints import CONFIGS, write_checkpoint, write_tensors
from tests.model_directory import write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A float32 checkpoint whose weights bfloat16 holds. Tests must not change it."""
    path = write_model(tmp_path_factory.mktemp("model") / "base")
    tensors = load_file(path / "model.safetensors")
    write_tensors(path, {name: rounded(tensor) for name, tensor in tensors.items()})
    return path


def rounded(tensor):
    return tensor.astype(jnp.bfloat16).astype(np.float32)


def by_hand(folder):
    """Returns the fingerprint of a safetensors file, whose tensors are all float32."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        elements = tensor.reshape(-1)[sampled_places(tensor.size)]
        digest.update(f"{name} {list(tensor.shape)} ".encode())
        # Rounded to bfloat16: the upper half of the bits, the even one of two that are as near.
        bits = elements.view(np.uint32).astype(np.uint64)
        digest.update(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("name", ["llama-mha-biases", "qwen2-sliding-yarn", "qwen3-tied", "gemma3"])
def test_it_is_told_by_the_tensors_of_the_checkpoint(tmp_path, name):
    write_checkpoint(tmp_path, CONFIGS[name])
    assert load(tmp_path).fingerprint == by_hand(tmp_path)


def test_it_is_the_same_however_weights_are_stored_or_loaded(folder, tmp_path):
    model = load(folder)
    told, params = model.fingerprint, model.params["target"]
    assert told == by_hand(folder)
    huggingface.save_params(tmp_path / "many", model.config, params, max_shard_bytes=20_000)
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    huggingface.save_params(tmp_path / "narrow", model.config, narrow)
    orbax.save(tmp_path / "orbax", model.config, params)
    orbax.save(tmp_path / "orbax-narrow", model.config, narrow)
    for stored in ("many", "narrow", "orbax", "orbax-narrow"):
        assert load(tmp_path / stored).fingerprint == told
    for options in ({"dtype": jnp.bfloat16}, {"weights": "int8"}, {"mesh": "fsdp=2,tp=2"}):
        assert load(folder, **options).fingerprint == told
    assert load(tmp_path / "orbax", weights="int8").fingerprint == told


def test_parameters_in_memory_tell_it_on_one_device_and_divided(folder):
    model = load(folder)
    params = model.params["target"]
    assert fingerprint(model.config, params) == model.fingerprint
    divided = place(params, make_mesh("fsdp=2,tp=2"))
    assert max(len(leaf.devices()) for leaf in jax.tree.leaves(divided)) == 4
    assert fingerprint(model.config, divided) == model.fingerprint
    with pytest.raises(ValueError, match="weights must be plain to tell which they are; got int8"):
        fingerprint(model.config, jax.jit(quantise_params)(params))


def test_every_tensor_counts(folder):
    """Of each, an eighth of its elements a little larger gives another fingerprint."""
    model = load(folder)
    flat = nnx.to_flat_state(model.params["target"])
    found = {model.fingerprint}
    for changed, variable in flat:
        value = np.array(variable.get_value())
        value.reshape(-1)[: max(1, value.size // 8)] *= 1.01
        seen = Fingerprint(model.config)
        for where, other in flat:
            seen.add(where, value if where == changed else np.asarray(other.get_value()))
        found.add(seen.hexdigest())
    assert len(found) == 1 + len(flat)


def test_a_fingerprint_needs_all_tensors(folder):
    with pytest.raises(ValueError, match=r"a fingerprint needs all tensors; lm_head\.weight is missing"):
        Fingerprint(load(folder).config).hexdigest()


@pytest.mark.parametrize("size", [1, 7, SAMPLE, SAMPLE + 1, 4096 * 4096, 128_256 * 8192])
def test_elements_that_count_are_spread_over_a_tensor(size):
    places = sampled_places(size)
    assert len(places) == min(size, SAMPLE)
    assert (np.diff(places) > 0).all()
    assert 0 <= places[0] <= places[-1] < size
    if size > 10**6:
        assert np.diff(places).max() < 2.01 * size / SAMPLE
        assert len({*(places % 4096).tolist()}) > SAMPLE / 2  # Not of one column.
