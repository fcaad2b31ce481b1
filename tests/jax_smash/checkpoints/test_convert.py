"""Conversions between checkpoint formats."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.checkpoints import huggingface, orbax
from jax_smash.checkpoints.convert import convert
from jax_smash.checkpoints.fingerprint import fingerprint
from jax_smash.checkpoints.huggingface import COMPANIONS, load_params, read_config
from jax_smash.checkpoints.smasher import MODULES, SMASHER_FILES, read_smasher, save_smasher
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.smasher import random_smasher
from tests.checkpoints import CONFIGS, write_checkpoint

WEIGHTS = "model.safetensors"


@pytest.fixture
def source(tmp_path):
    """A checkpoint with a tokenizer, and files that no conversion should take along."""
    directory = tmp_path / "source"
    write_checkpoint(directory, CONFIGS["llama-3-tied"] | {"dtype": "bfloat16", "note": "kept"}, dtype="BF16")
    for name in COMPANIONS:
        (directory / name).write_text(f'{{"name": "{name}"}}')
    (directory / "modeling_llama.py").write_text("raise SystemExit")
    return directory


def test_to_orbax_and_back_changes_nothing(source, tmp_path):
    assert convert(source, tmp_path / "orbax", to="orbax") == tmp_path / "orbax"
    assert orbax.is_checkpoint(tmp_path / "orbax")
    convert(tmp_path / "orbax", tmp_path / "back", to="huggingface")
    convert(source, tmp_path / "copy", to="huggingface")
    for name in COMPANIONS:
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == json.loads(
        (source / "config.json").read_text()
    )
    assert (tmp_path / "back" / WEIGHTS).read_bytes() == (tmp_path / "copy" / WEIGHTS).read_bytes()
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path / "back")[1], load_params(source)[1])
    expected = sorted(["config.json", WEIGHTS, *COMPANIONS])
    assert sorted(p.name for p in (tmp_path / "back").iterdir()) == expected


def test_a_conversion_may_change_the_dtype(source, tmp_path):
    steps = []
    convert(source, tmp_path / "wide", to="huggingface", dtype=jnp.float32, progress=lambda *step: steps.append(step))
    assert read_config(tmp_path / "wide")[1]["dtype"] == "float32"
    assert steps[-1][0] == steps[-1][1] > 1
    convert(tmp_path / "wide", tmp_path / "orbax", to="orbax", dtype=jnp.bfloat16)
    _, _, params = orbax.load(tmp_path / "orbax")
    jax.tree.map(np.testing.assert_array_equal, params, load_params(source)[1])


def test_nothing_is_written_for_a_source_that_is_no_good(source, tmp_path):
    before = sorted(p.name for p in tmp_path.iterdir())
    (source / WEIGHTS).write_bytes((source / WEIGHTS).read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"is damaged or incomplete"):
        convert(source, tmp_path / "out", to="orbax")
    with pytest.raises(FileNotFoundError, match=r"is neither a directory, a .gguf file nor a hub id"):
        convert(tmp_path / "no" / "thing", tmp_path / "out", to="orbax")
    with pytest.raises(ValueError, match=r"to must be one of huggingface, orbax; got 'gguf'"):
        convert(source, tmp_path / "out", to="gguf")
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_target_with_something_in_it_is_refused_before_the_source_is_read(source, tmp_path):
    with pytest.raises(FileExistsError, match=r"it has files in it"):
        convert(tmp_path / "nothing", source, to="orbax")
    assert (source / WEIGHTS).stat().st_size > 1000


@pytest.mark.parametrize("with_base", [False, True])
def test_modules_stay_as_they_are_and_a_base_with_them_is_converted(source, tmp_path, with_base):
    config = read_config(source)[0]
    smash = SmashConfig.for_base(config, micro_layers=1, micro_steps=2)
    if with_base:
        shutil.copytree(source, source / MODULES)
    save_smasher(source / MODULES, smash, random_smasher(config, smash)[1])
    (source / MODULES / "notes.txt").write_text("not taken along")
    convert(source, tmp_path / "out", to="orbax", dtype=jnp.float32)
    folder = tmp_path / "out" / MODULES
    for name in SMASHER_FILES:
        assert (folder / name).read_bytes() == (source / MODULES / name).read_bytes()
    assert read_smasher(folder).config == smash
    assert not (folder / "notes.txt").exists()
    assert orbax.is_checkpoint(folder) == with_base
    if with_base:
        jax.tree.map(np.testing.assert_array_equal, orbax.load(folder)[2], orbax.load(tmp_path / "out")[2])


@pytest.mark.parametrize("with_base", [False, True])
def test_modules_belong_to_what_is_written_in_float16(source, tmp_path, with_base):
    config, params = read_config(source)[0], load_params(source)[1]
    small = jax.tree.map(lambda x: x * jnp.asarray(1e-6, x.dtype), params)  # Float16 rounds it more than bfloat16.
    source, told = tmp_path / "small", fingerprint(config, small)
    huggingface.save_params(source, config, small)
    if with_base:
        shutil.copytree(source, source / MODULES)
    smash = SmashConfig.for_base(config, micro_layers=1, micro_steps=2)
    save_smasher(source / MODULES, smash, random_smasher(config, smash)[1], base_fingerprint=told)
    convert(source, tmp_path / "out", to="orbax", dtype="float16")
    convert(source, tmp_path / "wide", to="orbax", dtype="float32")
    of_written = fingerprint(config, orbax.load(tmp_path / "out")[2])
    assert read_smasher(tmp_path / "out" / MODULES).base_fingerprint == of_written != told
    assert read_smasher(tmp_path / "wide" / MODULES).base_fingerprint == told


def test_modules_without_their_weights_are_not_converted(source, tmp_path):
    (source / MODULES).mkdir()
    (source / MODULES / SMASHER_FILES[0]).write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"smasher\.safetensors is missing; smasher\.json is there"):
        convert(source, tmp_path / "out", to="orbax")
    assert not (tmp_path / "out").exists()
