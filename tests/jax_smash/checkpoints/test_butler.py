import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.checkpoints.butler import CONFIG, WEIGHTS, is_butler, load_butler, read_butler, save_butler
from jax_smash.models.predictors import FORMS, predictor_for, random_predictor
from tests.predictors import SIZES
from tests.tiny import tiny_config

MARK = "ab" * 32


def predictor(kind, dtype=jnp.float32, **changes):
    config = predictor_for(kind, tiny_config(), **(SIZES[kind] | changes))
    return config, random_predictor(config, 1, dtype)[1]


@pytest.fixture
def saved(tmp_path):
    config, params = predictor("grouped")
    save_butler(tmp_path / "butler", config, params, base_fingerprint=MARK)
    return tmp_path / "butler"


def load(folder, base=None, mark=MARK, **options):
    return load_butler(folder, tiny_config() if base is None else base, mark, **options)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("kind", FORMS)
def test_a_predictor_comes_back_bit_for_bit(kind, dtype, tmp_path):
    config, params = predictor(kind, dtype, refresh=2)
    save_butler(tmp_path, config, params, base_fingerprint=MARK)
    assert is_butler(tmp_path)
    loaded = load(tmp_path)
    assert (loaded.config, loaded.base_fingerprint) == (config, MARK)
    before, after = jax.tree_util.tree_leaves_with_path(params), jax.tree_util.tree_leaves_with_path(loaded.params)
    assert [path for path, _ in before] == [path for path, _ in after]
    for (_, x), (_, y) in zip(before, after, strict=True):
        assert x.dtype == y.dtype == dtype
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
    assert loaded.definition.bind(loaded.params).config == config


def test_weights_get_the_dtype_that_is_asked_for(saved):
    assert {str(x.dtype) for x in jax.tree.leaves(load(saved, dtype=jnp.bfloat16).params)} == {"bfloat16"}


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
    elif name == "other weights":
        weights.write_bytes(weights.read_bytes()[:-4] + b"abcd")
    else:
        file.write_text(json.dumps(fields | name))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("no description", "butler.json is missing"),
        ("no weights", "butler.safetensors is missing; butler.json is there"),
        ("no json", "butler.json is damaged: it must be JSON"),
        ("other weights", "butler.safetensors is damaged, or was not saved with the butler.json beside it"),
        ({"format": 7}, "must have format 1; got 7"),
        ({"base_fingerprint": ""}, "base_fingerprint must be a text; got ''"),
        ({"weights_sha256": None}, "weights_sha256 must be a text; got None"),
        ({"trained_length": 0}, "trained_length must be a number of entries from 1; got 0"),
        ({"kind": "oracle"}, "must be of one of the forms per_head, grouped, low_rank, gate; got 'oracle'"),
        ({"depth": 1}, "unknown field 'depth' of a predictor 'grouped'"),
        ({"hidden": "wide"}, "hidden must be of type int; got 'wide'"),
        ({"width": 8}, r"w_keys must be \[2, 2, 8, 8\], got \[2, 2, 8, 6\]"),
        ({"every": 1}, r"missing: producers.1"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(damage, said, saved):
    damaged(saved, damage)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        load(saved)


def test_a_predictor_is_refused_beside_other_weights_than_its_own_bases(saved):
    with pytest.raises(ValueError, match=f"weights have fingerprint {MARK[:16]}; got cdcdcdcdcdcdcdcd"):
        load(saved, mark="cd" * 32)
    with pytest.raises(ValueError, match=f"weights have fingerprint {MARK[:16]}; got none"):
        load(saved, mark=None)
    with pytest.raises(ValueError, match="is for a base whose d_model is 32; got 64"):
        load(saved, base=tiny_config(d_model=64))


def test_what_cannot_be_kept_is_refused_and_nothing_is_written(tmp_path):
    config, params = predictor("gate")
    broken = jax.tree.map(lambda w: w * jnp.float32(jnp.nan), params)
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        save_butler(tmp_path / "new", config, broken, base_fingerprint=MARK)
    with pytest.raises(ValueError, match="the tensors in memory do not fit its configuration"):
        save_butler(tmp_path / "new", predictor("gate", width=8)[0], params, base_fingerprint=MARK)
    with pytest.raises(ValueError, match="base_fingerprint must be that of the base's weights; got an empty text"):
        save_butler(tmp_path / "new", config, params, base_fingerprint="")
    assert not (tmp_path / "new").exists()


def test_stored_weights_that_are_not_numbers_are_refused(saved, monkeypatch):
    config, params = predictor("grouped")
    broken = jax.tree.map(lambda w: w * jnp.float32(jnp.nan), params)
    monkeypatch.setattr("jax_smash.checkpoints.butler.check_savable", lambda tensors: None)
    save_butler(saved, config, broken, base_fingerprint=MARK)
    with pytest.raises(ValueError, match=r"in .*butler.safetensors holds NaN or infinity"):
        load(saved)
    assert read_butler(saved).config == config


def test_weights_too_large_for_the_dtype_that_is_asked_for_are_refused(saved):
    config, params = predictor("grouped")
    large = jax.tree.map(lambda w: w + jnp.float32(1e6), params)
    save_butler(saved, config, large, base_fingerprint=MARK)
    with pytest.raises(ValueError, match=r"in .*butler.safetensors holds values that float16 cannot hold"):
        load(saved, dtype=jnp.float16)
