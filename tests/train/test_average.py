"""Averages of models' weights."""

import json
import re
import shutil

import jax
import numpy as np
import pytest

import jax_smash
from jax_smash.loading import ASSETS
from tests.checkpoints import LLAMA, write_checkpoint
from train.average import main
from train.parts.language_model.model_folder import TOKENIZER_FILES
from train.run.start import loaded_params

SIZES = {**LLAMA, "vocab_size": 4096}


def make_model(folder, seed, raw=SIZES):
    """Random weights with a tokenizer."""
    write_checkpoint(folder, raw, seed=seed)
    for file in TOKENIZER_FILES:
        shutil.copy(ASSETS / "tiny" / file, folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two models that differ in their weights alone."""
    folder = tmp_path_factory.mktemp("average")
    return tuple(make_model(folder / name, seed) for seed, name in enumerate(("first", "second")))


def test_each_weight_is_the_sum_of_the_models_own_times_their_shares(models, tmp_path):
    main(models, tmp_path / "out", shares=(0.25, 0.75))
    first, second, out = (jax.tree.leaves(loaded_params(folder).params) for folder in (*models, tmp_path / "out"))
    for a, b, c in zip(first, second, out, strict=True):
        expected = np.asarray(a) * np.float32(0.25) + np.asarray(b) * np.float32(0.75)
        np.testing.assert_allclose(np.asarray(c), expected, rtol=2**-8)  # Stored in bfloat16.
    assert any((np.asarray(a) != np.asarray(b)).any() for a, b in zip(first, second, strict=True))


def test_without_shares_all_models_count_alike(models, tmp_path):
    main(models, tmp_path / "alike")
    main(models, tmp_path / "halves", shares=(0.5, 0.5))
    alike, halves = (jax.tree.leaves(loaded_params(tmp_path / name).params) for name in ("alike", "halves"))
    jax.tree.map(np.testing.assert_array_equal, alike, halves)


def test_an_average_loads_and_its_card_tells_what_went_into_it(models, tmp_path):
    main(models, tmp_path / "out", shares=(0.25, 0.75))
    jax_smash.load(tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    for folder, share in zip(models, ("0.25", "0.75"), strict=True):
        assert f"| {share} | {loaded_params(folder).sha256} |" in card
    assert "--models MODEL1,MODEL2 --shares 0.25,0.75 --output" in card
    assert re.search(r"^(commit [0-9a-f]{40}|jax_smash \S+, outside).*; Python 3\..*\.$", card, re.MULTILINE)


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ((1.0,), "shares must be one for each of 2 models; got 1"),
        ((0.5, 0.4), "shares must be above 0 and together 1; got 0.5, 0.4"),
        ((1.5, -0.5), "shares must be above 0 and together 1; got 1.5, -0.5"),
    ],
)
def test_shares_that_are_no_average_are_refused(models, tmp_path, shares, said):
    with pytest.raises(ValueError, match=said):
        main(models, tmp_path / "out", shares=shares)
    assert not (tmp_path / "out").exists()


def test_one_model_is_no_average(models, tmp_path):
    with pytest.raises(ValueError, match="models must be two or more; got 1"):
        main(models[:1], tmp_path / "out")


def test_models_of_other_sizes_are_refused_by_what_differs(models, tmp_path):
    wider = make_model(tmp_path / "wider", 2, SIZES | {"intermediate_size": 128})
    with pytest.raises(ValueError, match=r"mlp_width of .*wider must be the 96 of .*first; got 128"):
        main((models[0], wider), tmp_path / "out")


def test_models_of_other_tokenizers_are_refused(models, tmp_path):
    other = make_model(tmp_path / "other", 2)
    words = json.loads((other / "tokenizer.json").read_text())
    (other / "tokenizer.json").write_text(json.dumps(words | {"truncation": None}, indent=1))
    with pytest.raises(ValueError, match=r"SHA-256 of the tokenizer of .*other must be the .* of .*first"):
        main((models[0], other), tmp_path / "out")


def test_what_is_there_already_is_left_alone(models, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept").touch()
    with pytest.raises(FileExistsError):
        main(models, tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["kept"]
