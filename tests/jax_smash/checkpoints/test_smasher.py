import dataclasses
import hashlib
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from jax_smash.checkpoints.smasher import (
    check_base_weights,
    describe_smasher,
    is_smasher,
    load_smasher,
    read_smasher,
    save_smasher,
    tokenizer_sha256,
)
from jax_smash.quantise import quantise_params
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.options import SmashOptions
from jax_smash.smash.smasher import SmasherDef, abstract_smasher
from tests.smashers import BASES, filled

BASE = BASES["llama"]
TOKENIZER = "ab" * 32
CONFIG = SmashConfig.for_base(BASE, micro_layers=1, micro_steps=3, tokenizer_sha256=TOKENIZER)
COUNTS = np.arange(BASE.vocab_size)[::-1]


@pytest.fixture(scope="module")
def modules():
    return filled(abstract_smasher(BASE, CONFIG), seed=3)


@pytest.fixture
def saved(tmp_path, modules):
    save_smasher(tmp_path / "modules", CONFIG, modules[1], token_counts=COUNTS)
    return tmp_path / "modules"


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def change_fields(folder, **fields):
    file = folder / "smasher.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def change_tensors(folder, change):
    """Writes other tensors, with the hash that belongs to them."""
    tensors = load_file(folder / "smasher.safetensors")
    change(tensors)
    save_file(tensors, folder / "smasher.safetensors")
    change_fields(folder, weights_sha256=hashlib.sha256((folder / "smasher.safetensors").read_bytes()).hexdigest())


def test_what_was_saved_comes_back(saved, modules):
    graphdef, params = modules
    loaded = load_smasher(saved, BASE, TOKENIZER)
    assert loaded.config == CONFIG
    assert loaded.definition == SmasherDef(graphdef)
    same(loaded.params, params)
    assert loaded.token_counts.dtype == np.int64
    np.testing.assert_array_equal(loaded.token_counts, COUNTS)
    assert is_smasher(saved)
    assert not is_smasher(saved.parent)
    assert {file.name for file in saved.iterdir()} == {"smasher.json", "smasher.safetensors"}


@pytest.mark.parametrize("embedder", ["attention", "mean"])
def test_the_dtype_is_the_files_or_the_one_asked_for(tmp_path, embedder):
    config = dataclasses.replace(CONFIG, embedder=embedder)
    _, params = filled(abstract_smasher(BASE, config, jnp.bfloat16))
    save_smasher(tmp_path, config, params)
    kept, wide = load_smasher(tmp_path, BASE, TOKENIZER), load_smasher(tmp_path, BASE, TOKENIZER, dtype=jnp.float32)
    same(kept.params, params)
    assert {leaf.dtype for leaf in jax.tree.leaves(wide.params)} == {np.dtype(np.float32)}
    same(wide.params, jax.tree.map(lambda x: x.astype(jnp.float32), params))
    assert kept.token_counts is None


def test_loaded_modules_compute_what_the_saved_ones_do(saved, modules):
    loaded = load_smasher(saved, BASE, TOKENIZER)
    vectors, count = jnp.ones((2, 3, BASE.d_model)), jnp.array([3, 2], jnp.int32)
    fuse = jax.jit(lambda graphdef, params: nnx.merge(graphdef, params).fuse(vectors, count), static_argnums=0)
    np.testing.assert_array_equal(fuse(loaded.definition.graphdef, loaded.params), fuse(*modules))


def test_whoever_may_read_one_file_may_read_the_other(saved):
    assert (saved / "smasher.safetensors").stat().st_mode == (saved / "smasher.json").stat().st_mode


def test_other_files_of_the_folder_stay_and_older_modules_are_replaced(saved):
    (saved / "config.json").write_text("{}")
    _, params = filled(abstract_smasher(BASE, CONFIG), seed=4)
    save_smasher(saved, CONFIG, params)
    loaded = load_smasher(saved, BASE, TOKENIZER)
    same(loaded.params, params)
    assert loaded.token_counts is None
    assert (saved / "config.json").read_text() == "{}"


OPTIONS = SmashOptions(confidence=0.6, token_confidence=0.98, micro_steps=2)


def test_settings_and_the_base_s_weights_come_back(tmp_path, modules):
    assert load_smasher(saved_with(tmp_path, modules), BASE, TOKENIZER).options == OPTIONS
    assert load_smasher(tmp_path, BASE, TOKENIZER).base_fingerprint == "cd" * 32
    with pytest.raises(ValueError, match="micro_steps must be at most 3, what the modules were trained for; got 4"):
        save_smasher(tmp_path / "other", CONFIG, modules[1], options=SmashOptions(micro_steps=4))
    assert not (tmp_path / "other").exists()


def saved_with(folder, modules):
    save_smasher(folder, CONFIG, modules[1], options=OPTIONS, base_fingerprint="cd" * 32)
    return folder


def test_files_of_the_first_format_carry_no_settings(saved):
    fields = json.loads((saved / "smasher.json").read_text())
    old = {name: value for name, value in fields.items() if name not in ("options", "base_fingerprint")}
    (saved / "smasher.json").write_text(json.dumps(old | {"format": 1}))
    found = load_smasher(saved, BASE, TOKENIZER)
    assert (found.options, found.base_fingerprint) == (SmashOptions(), "")


def test_a_description_is_written_anew_without_the_weights(tmp_path, modules):
    folder = saved_with(tmp_path / "modules", modules)
    before, weights = read_smasher(folder), (folder / "smasher.safetensors").stat().st_mtime_ns
    calibrated = SmashOptions(mode="checked", confidence=0.3)
    assert describe_smasher(folder, options=calibrated) == dataclasses.replace(before, options=calibrated)
    assert describe_smasher(folder, base_fingerprint="ef").options == calibrated
    assert load_smasher(folder, BASE, TOKENIZER).base_fingerprint == "ef"
    with pytest.raises(ValueError, match="confidence must be over 0"):
        describe_smasher(folder, options=SmashOptions(confidence=0))
    assert read_smasher(folder).options == calibrated
    assert (folder / "smasher.safetensors").stat().st_mtime_ns == weights
    assert {file.name for file in folder.iterdir()} == {"smasher.json", "smasher.safetensors"}


def test_other_weights_of_the_base_are_refused():
    where = {"modules": "there", "base": "here"}
    check_base_weights("ab", "ab", **where)
    check_base_weights("", "ab", **where)
    with pytest.raises(
        ValueError, match=r"modules in there were trained with .* fingerprint ab…; those of here have cd…: give"
    ):
        check_base_weights("ab", "cd", **where)


def test_a_failed_save_leaves_the_older_modules(saved, modules, monkeypatch):
    before = load_smasher(saved, BASE, TOKENIZER)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no room to save"):
        save_smasher(saved, CONFIG, modules[1])
    assert {file.name for file in saved.iterdir()} == {"smasher.json", "smasher.safetensors"}
    same(load_smasher(saved, BASE, TOKENIZER).params, before.params)


def test_weights_that_no_checkpoint_holds_are_not_saved(tmp_path, modules):
    params = modules[1]
    with pytest.raises(ValueError, match="weights to save must be plain; got int8"):
        save_smasher(tmp_path / "a", CONFIG, jax.jit(quantise_params)(params))
    with pytest.raises(ValueError, match=r"embedder\.\w+ holds NaN or infinity"):
        save_smasher(tmp_path / "a", CONFIG, jax.tree.map(lambda x: x.at[(0,) * x.ndim].set(jnp.nan), params))
    for counts in (np.ones(4), np.array([1, -1]), np.ones((2, 2), int)):
        with pytest.raises(ValueError, match="token_counts must be whole numbers from 0"):
            save_smasher(tmp_path / "a", CONFIG, params, token_counts=counts)
    assert not (tmp_path / "a").exists()


def test_a_missing_file_is_named(saved):
    (saved / "smasher.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"smasher.safetensors is missing; smasher.json is there"):
        load_smasher(saved, BASE, TOKENIZER)
    (saved / "smasher.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"smasher\.json is missing"):
        load_smasher(saved, BASE, TOKENIZER)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "damaged: it must be JSON"),
        ("[1]", "must hold a JSON object; got list"),
        ('{"format": 9}', "must have format 1 to 2; got 9"),
        ('{"format": 1}', "weights_sha256 must be a text; got None"),
        ('{"format": 2, "weights_sha256": "0"}', "base_fingerprint must be a text; got None"),
        ('{"format": 1, "weights_sha256": "0"}', r"smasher.json: \w+ is missing"),
    ],
)
def test_a_damaged_description_is_named(saved, text, complaint):
    (saved / "smasher.json").write_text(text)
    with pytest.raises(ValueError, match=complaint):
        load_smasher(saved, BASE, TOKENIZER)


def test_damaged_weights_and_those_of_another_save_are_named(saved, modules):
    file = saved / "smasher.safetensors"
    whole = file.read_bytes()
    for damaged in (whole[:-4], whole[:-1] + bytes([whole[-1] ^ 1])):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"smasher\.safetensors is damaged, or was not saved with"):
            load_smasher(saved, BASE, TOKENIZER)


def test_another_base_and_another_tokenizer_are_refused(saved):
    with pytest.raises(
        ValueError, match=r"smasher\.json: the modules were made for a base whose configuration has hash"
    ):
        load_smasher(saved, dataclasses.replace(BASE, mlp_width=64), TOKENIZER)
    with pytest.raises(ValueError, match=f"made for the tokenizer of hash {TOKENIZER}; got none"):
        load_smasher(saved, BASE, "")


def test_tensors_that_do_not_fit_are_named(saved):
    def spoil(tensors):
        tensors["place"] = tensors.pop("embedder.place")
        tensors["stop_head.b_in"] = tensors["stop_head.b_in"][:5].copy()

    change_tensors(saved, spoil)
    with pytest.raises(ValueError, match=r"missing: embedder.place .* unexpected: place .* stop_head.b_in must be"):
        load_smasher(saved, BASE, TOKENIZER)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("stop_head.b_in", np.full(BASE.d_model, np.inf, np.float32), "stop_head.b_in in .* holds NaN or infinity"),
        ("stop_head.b_in", np.zeros(BASE.d_model, np.int32), "has dtype int32; supported dtypes of weights: bfloat16"),
        ("stop_head.b_in", np.zeros(BASE.d_model, np.float16), "differ in dtype"),
        ("token_counts", np.zeros(7, np.int64), rf"token_counts in .* must be \[{BASE.vocab_size}\], got \[7\]"),
    ],
)
def test_wrong_values_are_named(saved, name, value, complaint):
    change_tensors(saved, lambda tensors: tensors.update({name: value}))
    with pytest.raises(ValueError, match=complaint):
        load_smasher(saved, BASE, TOKENIZER)


def test_weights_too_large_for_the_dtype_that_is_asked_for_are_refused(saved):
    large = np.full(BASE.d_model, 1e6, np.float32)
    change_tensors(saved, lambda tensors: tensors.update({"stop_head.b_in": large}))
    with pytest.raises(ValueError, match=r"stop_head.b_in in .* holds values that float16 cannot hold"):
        load_smasher(saved, BASE, TOKENIZER, dtype=jnp.float16)


def test_a_tokenizer_is_known_by_its_file(tmp_path):
    assert tokenizer_sha256(tmp_path) == tokenizer_sha256(None) == ""
    (tmp_path / "tokenizer.json").write_bytes(b"abc")
    assert tokenizer_sha256(tmp_path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
