import functools

import pytest

from jax_smash import generate
from jax_smash.methods import DraftOptions
from jax_smash.sampling import SamplingOptions
from tests.tiny import tiny_model

PROMPTS = ["the cat sat on the mat. the cat sat", "a b a b a b", "x", "to be or not to be, to be or", "mmmmmmmm", "q w"]
CASES = [
    *(("recycling", tree) for tree in ("off", "chain-1", "chain-4", "recycling-80", "auto")),
    ("hybrid", "recycling-80"),
    ("hybrid", "auto"),
    ("draft-model", "chain-1"),
    ("draft-model", "chain-4"),
    ("draft-model", "recycling-80"),
    *((method, tree) for method in ("lookup", "suffix", "lookahead") for tree in ("chain-4", "auto")),
]
GREEDY = SamplingOptions()
SAMPLED = SamplingOptions(temperature=0.8, top_k=20, top_p=0.95)
PENALISED = SamplingOptions(
    temperature=0.7,
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    logit_bias={40: 2.0},
    min_new_tokens=5,
)


# Rows of one batch differ in how they choose.
CHOICES = {"mixed": [GREEDY, SAMPLED, PENALISED, PENALISED, GREEDY, SAMPLED], "greedy": [GREEDY] * 6}


def made(method, choices, **options):
    model, sampling = tiny_model(stop_tokens=(10,)), CHOICES[choices]
    return generate(model, PROMPTS, method=method, sampling=sampling, max_new_tokens=24, batch_size=3, **options)


@functools.cache
def plain(choices):
    return made("ar", choices)


def tokens(completions):
    return [c.token_ids for c in completions]


@pytest.mark.parametrize(("method", "tree"), CASES)
def test_drafted_text_is_that_of_plain_decoding(method, tree):
    options = DraftOptions(tree=tree, draft_model="int8" if method == "draft-model" else None)
    drafted = made(method, "mixed", draft=options)
    assert tokens(drafted) == tokens(plain("mixed"))
    assert all(c.target_forwards <= max(c.new_tokens - 1, 0) for c in drafted)
    assert tree != "off" or all(c.target_forwards == c.new_tokens - 1 for c in drafted)


@pytest.mark.parametrize("tree", ["off", "chain-4", "recycling-80", "auto"])
def test_trees_grown_by_stored_probabilities_change_no_text(tree):
    drafted = made("recycling", "mixed", draft=DraftOptions(tree=tree, stored_probabilities=True))
    assert tokens(drafted) == tokens(plain("mixed"))


def test_a_tree_saves_forwards():
    drafted = made("recycling", "greedy", draft=DraftOptions(tree="recycling-80"))
    expected = plain("greedy")
    assert tokens(drafted) == tokens(expected)
    assert sum(c.target_forwards for c in drafted) < 0.9 * sum(c.target_forwards for c in expected)


def test_a_model_that_drafts_for_itself_is_always_right():
    # One int8 product differs from the plain one by little, so all but ties are drafted rightly.
    drafted = made("draft-model", "greedy", draft=DraftOptions(tree="chain-3", draft_model="int8"))
    expected = plain("greedy")
    assert tokens(drafted) == tokens(expected)
    assert sum(c.target_forwards for c in drafted) < 0.5 * sum(c.target_forwards for c in expected)
