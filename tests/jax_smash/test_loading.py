"""A model with the HAMburger modules that go with it."""

import dataclasses
import json
import shutil

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from qwix import QArray
from safetensors.numpy import load_file

import jax_smash
from jax_smash.checkpoints import huggingface
from jax_smash.checkpoints.smasher import (
    SMASHER_FILES,
    SmashModules,
    describe_smasher,
    save_smasher,
    tokenizer_sha256,
)
from jax_smash.loading import find_modules, grafted, load, quantised
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.smasher import SmasherDef, abstract_smasher
from tests.checkpoints import write_tensors
from tests.model_directory import write_model
from tests.smashers import filled


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A base with modules beside it. Tests must not change it."""
    path = write_model(tmp_path_factory.mktemp("model") / "base")
    config = huggingface.read_config(path)[0]
    sizes = SmashConfig.for_base(config, micro_layers=1, micro_steps=3, tokenizer_sha256=tokenizer_sha256(path))
    save_smasher(path / "hamburger", sizes, filled(abstract_smasher(config, sizes))[1])
    return path


@pytest.fixture
def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "base")


def test_a_misspelt_name_is_told_the_names_that_there_are():
    with pytest.raises(FileNotFoundError, match=r"no model 'tinny': it is neither tiny, smollm2, a directory, a .gguf"):
        jax_smash.load("tinny")


def test_modules_beside_a_model_are_found_and_those_of_a_folder_too(folder, tmp_path):
    model = load(folder, modules="auto")
    assert model.modules.config.micro_steps == 3
    assert model.params["smasher"] is model.modules.params
    elsewhere = shutil.copytree(folder / "hamburger", tmp_path / "elsewhere")
    again = load(folder, modules=elsewhere)
    for one, other in zip(*(jax.tree.leaves(m.params) for m in (model, again)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert load(folder).modules is None
    assert "smasher" not in load(folder).params


def test_modules_are_in_the_dtype_of_the_base_or_int8_like_it(folder):
    for dtype in (jnp.float32, jnp.bfloat16):
        params = load(folder, modules="auto", dtype=dtype).params["smasher"]
        assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(dtype)}
    params = load(folder, modules="auto", weights="int8").params["smasher"]
    assert isinstance(params["stop_head"]["w_in"].get_value(), QArray)


def test_a_model_that_is_made_int8_in_memory_is_what_would_have_been_read(folder):
    plain = load(folder, modules="auto")
    made, read = quantised(plain), load(folder, modules="auto", weights="int8")
    assert jax.tree.structure(made.params) == jax.tree.structure(read.params)
    for one, other in zip(jax.tree.leaves(made.params), jax.tree.leaves(read.params), strict=True):
        np.testing.assert_array_equal(one, other)
    assert made.modules.params is made.params["smasher"]
    assert not any(leaf.dtype == jnp.int8 for leaf in jax.tree.leaves(plain.params))
    assert quantised(load(folder)).modules is None


def test_a_hub_model_s_modules_are_fetched_where_they_are_asked_for(folder, tmp_path, monkeypatch):
    """A folder plays the hub; the hub's own library says which files the patterns name."""
    hub, here = shutil.copytree(folder, tmp_path / "hub"), tmp_path / "here"
    for file in ("config.json", "model.safetensors"):  # A base that was trained with the modules.
        shutil.copy(hub / file, hub / "hamburger")
    for file in ("hamburger/weights.bin", "hamburger/README.md", "other/model.safetensors"):
        (hub / file).parent.mkdir(exist_ok=True)
        (hub / file).touch()

    def download(name, *, allow_patterns):
        assert name == "owner/model"
        files = [str(path.relative_to(hub)) for path in hub.rglob("*") if path.is_file()]
        for file in huggingface_hub.utils.filter_repo_objects(files, allow_patterns=allow_patterns):
            (here / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(hub / file, here / file)
        return str(here)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load("owner/model").modules is None
    assert not (here / "hamburger").exists()
    assert load("owner/model", modules="auto").modules.config.micro_steps == 3
    fetched = {str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()}
    modules = {f"hamburger/{file}" for file in SMASHER_FILES}
    assert fetched >= modules | {"config.json", "model.safetensors", "tokenizer.json"}
    assert {file for file in fetched if "/" in file} == modules | {
        "hamburger/config.json",
        "hamburger/model.safetensors",
    }


def test_a_missing_folder_says_what_to_do(folder, tmp_path):
    bare = write_model(tmp_path / "bare")
    with pytest.raises(FileNotFoundError, match=r"bare has no HAMburger modules in .*hamburger; give --modules FOLDER"):
        load(bare, modules="auto")
    with pytest.raises(FileNotFoundError, match=r"bare has no HAMburger modules: smasher\.json is missing"):
        load(folder, modules=bare)
    assert find_modules(folder, "auto") == folder / "hamburger"


def test_modules_of_another_base_or_tokenizer_are_refused_before_weights_are_read(copied):
    raw = json.loads((copied / "config.json").read_text())
    (copied / "model.safetensors").unlink()
    tokenizer = copied / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    with pytest.raises(ValueError, match=r"smasher\.json: the modules were made for the tokenizer of hash"):
        load(copied, modules="auto")
    (copied / "config.json").write_text(json.dumps(raw | {"rms_norm_eps": 0.5}))
    with pytest.raises(ValueError, match=r"smasher\.json: the modules were made for a base whose configuration"):
        load(copied, modules="auto")


def test_a_base_that_was_trained_with_the_modules_takes_the_model_s_place(copied, folder):
    base = load(folder)
    moved = jax.tree.map(lambda x: x + jnp.asarray(0.5, x.dtype), base.params["target"])
    together = copied / "together"
    huggingface.save_params(together, base.config, moved)
    for file in (copied / "hamburger").iterdir():
        shutil.copy(file, together)
    model = load(copied, modules=together)
    for one, other in zip(jax.tree.leaves(model.params["target"]), jax.tree.leaves(moved), strict=True):
        np.testing.assert_array_equal(one, other)
    assert model.tokenizer is not None
    raw = json.loads((together / "config.json").read_text())
    (together / "config.json").write_text(json.dumps(raw | {"rms_norm_eps": 0.5}))
    with pytest.raises(ValueError, match=r"must have the configuration of the one in .*; it has another"):
        load(copied, modules=together)
    (together / "config.json").write_text(json.dumps(raw))
    (together / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"must have the tokenizer of the one in .*; it has another"):
        load(copied, modules=together)


def test_modules_can_be_grafted_in_memory(folder):
    model = load(folder)
    config = SmashConfig.for_base(model.config, micro_layers=1)
    graphdef, params = filled(abstract_smasher(model.config, config))
    modules = SmashModules(config=config, definition=SmasherDef(graphdef), params=params)
    made = grafted(model, modules)
    said = jax_smash.generate(made, "ab", method="hamburger", max_new_tokens=3)[0]
    assert said.smashed.tokens == said.new_tokens == 3
    with pytest.raises(ValueError, match=r"need a model of this package; .* is none"):
        grafted(dataclasses.replace(model, config=None), modules)
    with pytest.raises(ValueError, match="made for a base whose configuration has hash"):
        grafted(dataclasses.replace(model, config=dataclasses.replace(model.config, norm_epsilon=0.5)), modules)


@pytest.fixture(scope="module")
def bound(folder, tmp_path_factory):
    """A base with modules beside it that tell which weights they were trained with. Tests must not change it."""
    path = shutil.copytree(folder, tmp_path_factory.mktemp("bound") / "base")
    describe_smasher(path / "hamburger", base_fingerprint=load(path).fingerprint)
    return path


def fine_tuned(folder, target):
    """Writes the same base with its last layer a little otherwise; returns its folder."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("hamburger"))
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    write_tensors(target, tensors | {name: tensors[name] * np.float32(1.01)})
    return target


REFUSED = (
    r"the modules in .*hamburger were trained with a base whose weights have fingerprint [0-9a-f]{16}…; "
    r"those of .*other have [0-9a-f]{16}…: give the base that they were trained with, or modules of this one"
)


@pytest.mark.parametrize(
    "options",
    [{}, {"dtype": jnp.bfloat16}, {"dtype": jnp.float16}, {"weights": "int8"}, {"mesh": "fsdp=2,tp=2"}],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_modules_go_with_the_weights_alone_that_they_were_trained_with(bound, tmp_path, options):
    assert load(bound, modules="auto", **options).modules is not None
    other = fine_tuned(bound, tmp_path / "other")
    with pytest.raises(ValueError, match=REFUSED):
        load(other, modules=bound / "hamburger", **options)


def test_weights_that_float16_cannot_hold_are_told_by_the_checkpoint(bound, tmp_path):
    small = shutil.copytree(bound, tmp_path / "small")
    tensors = load_file(bound / "model.safetensors")
    write_tensors(small, {name: tensor * np.float32(1e-6) for name, tensor in tensors.items()})
    told = load(small).fingerprint
    assert load(small, dtype=jnp.float16).fingerprint is None
    describe_smasher(small / "hamburger", base_fingerprint=told)
    model = load(small, modules="auto", dtype=jnp.float16)
    assert model.fingerprint == told
    bare = dataclasses.replace(model, modules=None)
    assert grafted(bare, model.modules).modules is not None
    with pytest.raises(ValueError, match="does not tell what its rounded ones were made from"):
        grafted(dataclasses.replace(bare, fingerprint=None), model.modules)


def test_modules_with_a_base_of_their_own_go_with_that_one(bound, tmp_path):
    other = fine_tuned(bound, tmp_path / "other")
    for file in (bound / "hamburger").iterdir():
        shutil.copy(file, other)
    with pytest.raises(ValueError, match="were trained with a base whose weights have fingerprint"):
        load(bound, modules=other)
    describe_smasher(other, base_fingerprint=load(other).fingerprint)
    assert load(bound, modules=other).fingerprint == load(other).fingerprint != load(bound).fingerprint


def test_modules_are_not_grafted_on_other_weights_in_memory(bound, tmp_path):
    model, other = load(bound, modules="auto"), load(fine_tuned(bound, tmp_path / "other"))
    bare = dataclasses.replace(model, modules=None)
    for copy in (bare, quantised(bare), dataclasses.replace(bare, fingerprint=None)):
        assert grafted(copy, model.modules).modules is model.modules
    # A fingerprint that is no longer that of the weights in memory does not count.
    replaced = dataclasses.replace(bare, params=other.params)
    for copy in (other, quantised(other), replaced, quantised(replaced)):
        with pytest.raises(ValueError, match="the modules in memory were trained with a base whose weights"):
            grafted(copy, model.modules)
    untold = dataclasses.replace(quantised(bare), fingerprint=None)
    with pytest.raises(ValueError, match=r"does not tell what its rounded ones were made from: load it with"):
        grafted(untold, model.modules)


@pytest.mark.parametrize(
    ("mesh", "heads", "said"),
    [
        ("tp=2", 4, None),
        ("tp=4", 4, "for a mesh of tp=4 each of 2 KV heads is held 2 times, side by side, and so is its cache"),
        (
            "tp=4",
            2,
            "a mesh of tp=4 does not divide 2 KV heads: each device holds the attention weights and the caches",
        ),
        ("fsdp=4", 4, None),
        (None, 4, None),
    ],
)
def test_a_mesh_that_does_not_divide_the_kv_heads_is_told(tmp_path, caplog, mesh, heads, said):
    model = jax_smash.load(write_model(tmp_path, num_key_value_heads=2, num_attention_heads=heads), mesh=mesh)
    assert [said in record.getMessage() for record in caplog.records] == [True] * (said is not None)
    assert model.config.held_kv_heads == (4 if (mesh, heads) == ("tp=4", 4) else 2)
