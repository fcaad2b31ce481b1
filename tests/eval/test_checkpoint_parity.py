import dataclasses
import json

import jax
import pytest

pytest.importorskip("torch", reason="the reference runs on torch")

import jax_smash
from eval import checkpoint_parity
from eval.checkpoint_parity import Settings, logit_error, main
from eval.exact.reference import LoadedReference
from jax_smash.loading import ASSETS


def test_tiny_agrees_with_transformers_loading_of_its_files(tmp_path):
    path = tmp_path / "parity.json"
    status = main(Settings(model="tiny", num_prompts=3, prompt_tokens=12, max_new_tokens=4, json=path))
    (row,) = json.loads(path.read_text())["rows"]
    assert status == 0
    assert (row["prompts"], row["tokens"], row["beyond_near_ties"]) == (3, 12, 0)
    assert 0 < row["logit_error"] < 1e-5


def test_other_weights_are_seen():
    model = jax_smash.load("tiny")
    params = {"target": jax.tree.map(lambda x: x * 1.001, model.params["target"])}
    with jax.default_matmul_precision("highest"):
        changed = logit_error(dataclasses.replace(model, params=params), LoadedReference(ASSETS / "tiny"), [5, 6, 7, 8])
    assert changed > checkpoint_parity.NEAR_TIE


def test_nothing_is_compared_without_prompts():
    with pytest.raises(ValueError, match="num_prompts must be at least 1; got 0"):
        Settings(num_prompts=0).check()
