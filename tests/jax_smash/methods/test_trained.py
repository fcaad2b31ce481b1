"""Drafters in folders, of every kind that is trained: read as they were written, and refused where they do not fit."""

import jax
import numpy as np
import pytest

from jax_smash.checkpoints.chimera import load_chimera, random_drafter, save_chimera
from jax_smash.checkpoints.dflash import load_dflash, save_dflash
from jax_smash.checkpoints.dflash import random_drafter as random_dflash
from jax_smash.checkpoints.eagle import load_eagle, random_modules, save_eagle
from jax_smash.checkpoints.eagle1 import load_eagle1, random_eagle1_modules, save_eagle1
from jax_smash.checkpoints.medusa import load_medusa, random_heads, save_medusa
from jax_smash.methods import DraftOptions, make_method
from jax_smash.pytree import size
from tests.tiny import tiny_config, tiny_model

KINDS = {
    "eagle": (random_modules, save_eagle, load_eagle),
    "eagle1": (random_eagle1_modules, save_eagle1, load_eagle1),
    "medusa": (random_heads, save_medusa, load_medusa),
    "chimera": (random_drafter, save_chimera, load_chimera),
    "dflash": (random_dflash, save_dflash, load_dflash),
}
METHODS = {"eagle1": "eagle"}
"""Methods whose names are not their drafters' kinds."""


def saved(kind, folder, *, base_fingerprint="", **changes):
    random, save, _ = KINDS[kind]
    made = random(tiny_config(**changes))
    save(folder, made.config, made.params, base_fingerprint=base_fingerprint)
    return made


def method(kind, drafter):
    return make_method(tiny_model(), METHODS.get(kind, kind), draft=DraftOptions(drafter=drafter))


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_holds_what_was_saved(kind, tmp_path):
    made, read = saved(kind, tmp_path, base_fingerprint="a" * 64), KINDS[kind][2](tmp_path)
    assert (read.config, read.base_fingerprint, size(read.params)) == (made.config, "a" * 64, size(made.params))
    for before, after in zip(*(map(np.asarray, leaves(one)) for one in (made, read)), strict=True):
        np.testing.assert_array_equal(before, after)


def leaves(drafter):
    return jax.tree.leaves(drafter.params)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"d_model": 64}, "is for a target with a width of 64; two-layer has one of 32"),
        ({"vocab_size": 300}, "is for a target with a vocabulary of 300; two-layer has one of"),
        ({"base_fingerprint": "a" * 64}, "was trained for a target whose weights have fingerprint aaaaaaaaaaaaaaaa…"),
    ],
)
def test_a_drafter_of_another_target_is_refused(kind, changes, said, tmp_path):
    saved(kind, tmp_path, **changes)
    with pytest.raises(ValueError, match=said):
        method(kind, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_not_those_of_the_description_are_refused(kind, tmp_path):
    saved(kind, tmp_path)
    file = tmp_path / f"{kind}.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=rf"{kind}\.safetensors"):
        method(kind, tmp_path)


@pytest.mark.parametrize(
    ("kind", "other"), [("eagle", "medusa"), ("medusa", "eagle"), ("chimera", "medusa"), ("dflash", "eagle")]
)
def test_a_drafter_of_another_kind_is_refused(kind, other, tmp_path):
    with pytest.raises(ValueError, match=rf"method {kind} needs [\w ]+ as its drafter; got \w+Modules"):
        method(kind, KINDS[other][0](tiny_config()))
    saved(other, tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"{kind}\.json"):
        method(kind, tmp_path)
