import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.checkpoints.eagle import CONFIG, WEIGHTS, load_eagle, read_eagle, save_eagle
from jax_smash.quantise import quantise_params
from tests.eagle import random_drafter
from tests.tiny import tiny_model

TOKENS = (1, 4, 5, 90)


@pytest.fixture
def saved(tmp_path):
    made = random_drafter(tiny_model(), tokens=TOKENS, tap_norms=True, max_positions=99)
    save_eagle(tmp_path / "drafter", made.config, made.params)
    return made, tmp_path / "drafter"


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("tokens", [TOKENS, None])
def test_a_drafter_comes_back_bit_for_bit(dtype, tokens, tmp_path):
    made = random_drafter(tiny_model(), tokens=tokens, tap_norms=tokens is None)
    params = jax.tree.map(lambda w: w if w.dtype == jnp.int32 else w.astype(dtype), made.params)
    save_eagle(tmp_path, made.config, params)
    loaded = load_eagle(tmp_path)
    assert loaded.config == made.config
    before, after = jax.tree_util.tree_leaves_with_path(params), jax.tree_util.tree_leaves_with_path(loaded.params)
    assert [path for path, _ in before] == [path for path, _ in after]
    for (_, x), (_, y) in zip(before, after, strict=True):
        assert x.dtype == y.dtype
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_weights_get_the_dtype_that_is_asked_for_and_tokens_stay_whole_numbers(saved):
    loaded = load_eagle(saved[1], dtype=jnp.bfloat16)
    assert {str(x.dtype) for x in jax.tree.leaves(loaded.params)} == {"bfloat16", "int32"}
    bound = loaded.definition.bind(loaded.params)
    assert bound.tokens[...].tolist() == list(TOKENS)


def test_the_files_hold_what_the_documentation_says(saved):
    made, folder = saved
    assert sorted(file.name for file in folder.iterdir()) == [CONFIG, WEIGHTS]
    fields = json.loads((folder / CONFIG).read_text())
    assert fields["format"] == 1
    assert fields["taps"] == [1, 2]
    assert read_eagle(folder) == (made.config, fields["weights_sha256"], "", None)


def test_a_drafter_tells_the_weights_that_it_was_trained_for(saved):
    made, folder = saved
    save_eagle(folder, made.config, made.params, base_fingerprint="ab12")
    assert load_eagle(folder).base_fingerprint == read_eagle(folder).base_fingerprint == "ab12"
    # A file without the field is read still.
    fields = json.loads((folder / CONFIG).read_text())
    del fields["base_fingerprint"]
    (folder / CONFIG).write_text(json.dumps(fields))
    assert load_eagle(folder).base_fingerprint == ""


def damaged(folder, name):
    """Damages a folder in some way."""
    file, weights = folder / CONFIG, folder / WEIGHTS
    fields = json.loads(file.read_text())
    if name == "no description":
        file.unlink()
    elif name == "no weights":
        weights.unlink()
    elif name == "no json":
        file.write_text("{")
    elif name == "a list":
        file.write_text("[]")
    elif name == "another format":
        file.write_text(json.dumps(fields | {"format": 7}))
    elif name == "no hash":
        file.write_text(json.dumps(fields | {"weights_sha256": None}))
    elif name == "other weights":
        weights.write_bytes(weights.read_bytes()[:-4] + b"abcd")
    else:
        file.write_text(json.dumps(fields | name))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("no description", "eagle.json is missing"),
        ("no weights", "eagle.safetensors is missing; eagle.json is there"),
        ("no json", "eagle.json is damaged: it must be JSON"),
        ("a list", "eagle.json must hold a JSON object; got list"),
        ("another format", "must have format 1; got 7"),
        ("no hash", "weights_sha256 must be a text; got None"),
        ("other weights", "eagle.safetensors is damaged, or was not saved with the eagle.json beside it"),
        ({"taps": []}, "eagle.json: taps must be one or more"),
        ({"depth": 1}, "eagle.json: unknown field 'depth'"),
        ({"mlp_width": 20}, r"mlp.w_gate_up must be \[2, 32, 20\], got \[2, 32, 48\]"),
        ({"tap_norms": False}, r"unexpected: tap_norms.0.scale \[32\]"),
        ({"taps": [0, 1, 2]}, r"missing: tap_norms.2.scale \[32\]"),
        ({"vocab_size": 80}, "tokens must be ids from 0 to 79"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(damage, said, saved):
    damaged(saved[1], damage)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        load_eagle(saved[1])


def test_weights_that_cannot_be_kept_are_refused_and_nothing_is_written(saved, tmp_path):
    made, _ = saved
    target = tmp_path / "new"
    with pytest.raises(ValueError, match="weights to save must be plain; got int8"):
        save_eagle(target, made.config, quantise_params(made.params))
    broken = jax.tree.map(lambda w: w if w.ndim < 2 else w * jnp.float32(jnp.nan), made.params)
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        save_eagle(target, made.config, broken)
    with pytest.raises(ValueError, match="the tensors in memory do not fit its configuration"):
        save_eagle(target, random_drafter(tiny_model()).config, made.params)
    assert not target.exists()


def test_weights_too_large_for_the_dtype_that_is_asked_for_are_refused(saved):
    made, folder = saved
    large = jax.tree.map(lambda w: w if w.dtype == jnp.int32 else w + jnp.float32(1e6), made.params)
    save_eagle(folder, made.config, large)
    with pytest.raises(ValueError, match=r"in .*eagle.safetensors holds values that float16 cannot hold"):
        load_eagle(folder, dtype=jnp.float16)
