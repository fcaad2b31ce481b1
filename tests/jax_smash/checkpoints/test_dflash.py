import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jax_smash import load
from jax_smash.checkpoints.described import sha256
from jax_smash.checkpoints.dflash import CONFIG, WEIGHTS, load_dflash, read_dflash, save_dflash
from jax_smash.quantise import quantise_params
from tests.dflash import random_drafter
from tests.tiny import tiny_model


@pytest.fixture
def saved(tmp_path):
    made = random_drafter(tiny_model(), max_positions=99)
    save_dflash(tmp_path / "drafter", made.config, made.params, base_fingerprint="ab12")
    return made, tmp_path / "drafter"


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("changes", [{}, {"mask_token": 7, "taps": (0,), "num_layers": 1, "window": 8}])
def test_a_drafter_comes_back_bit_for_bit(dtype, changes, tmp_path):
    made = random_drafter(tiny_model(), **changes)
    params = jax.tree.map(lambda w: w.astype(dtype), made.params)
    save_dflash(tmp_path, made.config, params)
    loaded = load_dflash(tmp_path)
    assert (loaded.config, loaded.base_fingerprint) == (made.config, "")
    before, after = jax.tree_util.tree_leaves_with_path(params), jax.tree_util.tree_leaves_with_path(loaded.params)
    assert [path for path, _ in before] == [path for path, _ in after]
    for (_, x), (_, y) in zip(before, after, strict=True):
        assert x.dtype == y.dtype
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_the_files_hold_what_the_documentation_says(saved):
    made, folder = saved
    assert sorted(file.name for file in folder.iterdir()) == [CONFIG, WEIGHTS]
    fields = json.loads((folder / CONFIG).read_text())
    assert (fields["format"], fields["taps"], fields["block_size"], fields["mask_token"]) == (1, [1, 2], 4, None)
    assert read_dflash(folder) == (made.config, fields["weights_sha256"], "ab12", None)
    layer = {"attention.w_qkv", "attention.w_o", "attention.q_norm.scale", "attention.k_norm.scale"}
    layer |= {"mlp.w_gate_up", "mlp.w_down", "attention_norm.scale", "mlp_norm.scale"}
    named = {f"layers.{number}.{name}" for number in (0, 1) for name in layer}
    tensors = load_file(folder / WEIGHTS)
    assert set(tensors) == named | {"w_join", "context_norm.scale", "final_norm.scale", "mask"}
    assert tensors["w_join"].shape == (64, 32)


def damaged(folder, name):
    """Damages a folder in some way."""
    file, weights = folder / CONFIG, folder / WEIGHTS
    fields = json.loads(file.read_text())
    if name == "no description":
        file.unlink()
    elif name == "no taps":
        del fields["taps"]
        file.write_text(json.dumps(fields))
    elif name == "other weights":
        weights.write_bytes(weights.read_bytes()[:-4] + b"abcd")
    elif name == "one more":
        save_file(load_file(weights) | {"d2t": np.zeros(3, np.float32)}, weights)
        file.write_text(json.dumps(fields | {"weights_sha256": sha256(weights)}))
    else:
        file.write_text(json.dumps(fields | name))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("no description", "dflash.json is missing"),
        ("no taps", "dflash.json: taps is missing"),
        ("other weights", "dflash.safetensors is damaged, or was not saved with the dflash.json beside it"),
        ("one more", r"unexpected: d2t"),
        ({"format": 7}, "must have format 1; got 7"),
        ({"block_size": 65}, "dflash.json: block_size must be from 2 to 64 entries; got 65"),
        ({"block_size": "4"}, "block_size must be of type int; got '4'"),
        ({"mask_token": 1.5}, "mask_token must be a whole number or null; got 1.5"),
        ({"taps": [2, 1]}, r"taps must be one or more of the target's, in order, each once; got \[2, 1\]"),
        ({"taps": [1, None]}, r"taps must be a list of whole numbers; got \[1, None\]"),
        ({"taps": [1]}, r"w_join must be \[32, 32\], got \[64, 32\]"),
        ({"rope": 3}, "rope must be an object; got 3"),
        ({"rope": {"bass": 1.0}}, "rope: .*bass"),
        ({"depth": 1}, "dflash.json: unknown field 'depth'"),
        ({"mask_token": 5}, r"unexpected: mask \[32\]"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(damage, said, saved):
    damaged(saved[1], damage)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        load_dflash(saved[1])


def test_weights_that_cannot_be_kept_are_refused_and_nothing_is_written(saved, tmp_path):
    made, _ = saved
    target = tmp_path / "new"
    with pytest.raises(ValueError, match="weights to save must be plain; got int8"):
        save_dflash(target, made.config, quantise_params(made.params))
    broken = jax.tree.map(lambda w: w if w.ndim < 2 else w * jnp.float32(jnp.nan), made.params)
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        save_dflash(target, made.config, broken)
    assert not target.exists()


def test_a_folder_that_is_taken_for_a_model_is_called_what_it_is(saved):
    with pytest.raises((ValueError, FileNotFoundError), match="DFlash's drafter"):
        load(str(saved[1]))


def test_weights_too_large_for_the_dtype_that_is_asked_for_are_refused(saved, tmp_path):
    made, _ = saved
    large = jax.tree.map(lambda w: w + jnp.float32(1e6), made.params)
    save_dflash(tmp_path / "large", made.config, large)
    load_dflash(tmp_path / "large", dtype=jnp.bfloat16)
    with pytest.raises(ValueError, match=r"in .*dflash.safetensors holds values that float16 cannot hold"):
        load_dflash(tmp_path / "large", dtype=jnp.float16)


def test_tokens_are_stored_as_int32_and_read_as_int64_too(tmp_path):
    made, tokens = random_drafter(tiny_model(), head_size=3), np.array([1, 4, 90], np.int64)
    save_dflash(tmp_path, made.config, made.params, tokens=tokens)
    stored = load_file(tmp_path / WEIGHTS)
    assert stored["tokens"].dtype == np.int32
    save_file(stored | {"tokens": tokens}, tmp_path / WEIGHTS)
    fields = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps(fields | {"weights_sha256": sha256(tmp_path / WEIGHTS)}))
    assert load_dflash(tmp_path).tokens.tolist() == tokens.tolist()
