import functools

import jax
import pytest

from jax_smash import generate
from jax_smash.decode.programs import PROGRAMS
from jax_smash.decode.speculative import Speculative
from jax_smash.methods import DraftOptions
from jax_smash.sampling import SamplingOptions
from tests import chimera, dflash
from tests.drafting import other_model
from tests.eagle import random_drafter
from tests.eagle1 import random_drafter1
from tests.medusa import random_heads
from tests.tiny import tiny_model

# All of one length bucket, so that a method compiles one prefill.
PROMPTS = ["the cat sat on the mat. the cat", "a b a b a b", "x", "to be or not to be, to be or", "mmmmmmmm", "q w"]
CASES = [("recycling", "off"), ("recycling", "recycling-80"), ("hybrid", "auto"), ("draft-model", "chain-2")]
CASES += [("draft-model", "siblings"), ("lookup", "chain-4"), ("suffix", "auto"), ("lookahead", "auto")]
CASES += [(name, "siblings") for name in ("eagle", "medusa", "chimera", "self-sparse")]
CASES += [("dflash", "tree-12"), ("eagle1", "confident-8:depth=3,width=3"), ("eagle", "chain-4:least=0.02")]
# Other pairs of a drafter and a way to make trees, both of which stand above.
MORE_CASES = [
    *(("recycling", tree) for tree in ("chain-1", "chain-4", "auto")),
    ("hybrid", "recycling-80"),
    *(("draft-model", tree) for tree in ("chain-1", "chain-4", "recycling-80")),
    ("lookup", "auto"),
    ("suffix", "chain-4"),
    ("lookahead", "chain-4"),
    *(("eagle", tree) for tree in ("off", "auto", "recycling-80", "confident-8:depth=3,width=3")),
    *(("eagle1", tree) for tree in ("off", "chain-4", "siblings")),
    *(("medusa", tree) for tree in ("off", "chain-4", "auto")),
    *(("self-sparse", tree) for tree in ("off", "chain-4", "auto")),
    *(("chimera", tree) for tree in ("off", "auto", "recycling-80")),
    *(("dflash", tree) for tree in ("off", "auto", "siblings")),
]
SIBLINGS = "[[0], [1], [0, 0], [1, 0]]"
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
MIXED = [GREEDY, SAMPLED, PENALISED, PENALISED, GREEDY, SAMPLED]


@functools.cache
def made(method, tree="auto", **options):
    """Returns completions of the prompts, likeliest tokens alone, and of the prompts again, with mixed choices."""
    if method == "draft-model":
        # With siblings another model drafts, which is often wrong.
        options["draft_model"] = other_model() if tree.endswith(".json") else "int8"
    if method == "eagle":
        # Of tokens that the texts hold, so that penalties and biases bear on drafts.
        options["drafter"] = random_drafter(tiny_model(stop_tokens=(10,)), tokens=range(30, 140))
    if method == "eagle1":
        method, options["drafter"] = "eagle", random_drafter1(tiny_model(stop_tokens=(10,)))
    if method == "medusa":
        options["drafter"] = random_heads(tiny_model(stop_tokens=(10,)))
    if method == "self-sparse":
        options["sparse"] = "quest:budget=12,page_size=4,dense_layers=0"
    if method == "chimera":
        options["drafter"] = chimera.random_drafter(tiny_model(stop_tokens=(10,)))
    if method == "dflash":
        options["drafter"] = dflash.random_drafter(tiny_model(stop_tokens=(10,)))
    draft = DraftOptions(tree=tree, **options)
    model, sampling = tiny_model(stop_tokens=(10,)), [GREEDY] * len(PROMPTS) + MIXED
    completions = generate(
        model, PROMPTS * 2, method=method, sampling=sampling, max_new_tokens=24, batch_size=3, draft=draft
    )
    return completions[: len(PROMPTS)], completions[len(PROMPTS) :]


@pytest.fixture
def siblings(tmp_path_factory):
    """The name of a tree with siblings."""
    file = tmp_path_factory.getbasetemp() / "siblings.json"
    file.write_text(SIBLINGS)
    return str(file)


def tokens(completions):
    return [c.token_ids for c in completions]


def texts(parts):
    return [tokens(completions) for completions in parts]


@pytest.mark.parametrize(
    ("method", "tree"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES)]
)
def test_drafted_text_is_that_of_plain_decoding(method, tree, siblings):
    drafted = made(method, siblings if tree == "siblings" else tree)
    assert texts(drafted) == texts(made("ar"))
    drafted = [c for part in drafted for c in part]
    assert all(c.target_forwards <= max(c.new_tokens - 1, 0) for c in drafted)
    assert tree != "off" or all(c.target_forwards == c.new_tokens - 1 for c in drafted)


@pytest.mark.slow
@pytest.mark.parametrize("tree", ["auto", "off", "chain-4", "recycling-80"])
def test_trees_grown_by_stored_probabilities_change_no_text(tree):
    drafted = made("recycling", tree, stored_probabilities=True)
    assert texts(drafted) == texts(made("ar"))


@pytest.fixture
def widths(monkeypatch):
    """Entries of each forward over drafts, as they run."""
    found, choose = [], Speculative._choice

    def told(self, state, model, tree, hidden):
        jax.debug.callback(functools.partial(found.append, tree.token.shape[1]))
        return choose(self, state, model, tree, hidden)

    PROGRAMS.forget()
    monkeypatch.setattr(Speculative, "_choice", told)
    yield found
    PROGRAMS.forget()


@pytest.mark.parametrize(
    ("method", "tree", "rows", "wanted"),
    [
        # What follows where a text repeats itself is as long as is asked for.
        ("suffix", "chain-4", 1, {1, 5}),
        pytest.param("suffix", "chain-4", 3, {1, 5}, marks=pytest.mark.slow),
        pytest.param("eagle", "chain-4:least=0.02", 1, {1, 3, 5}, marks=pytest.mark.slow),
    ],
)
def test_a_forward_is_no_wider_than_its_drafts_need(method, tree, rows, wanted, widths):
    drafter = random_drafter(tiny_model(), tokens=range(30, 140)) if method == "eagle" else None
    draft, request = DraftOptions(tree=tree, drafter=drafter), {"max_new_tokens": 24, "batch_size": rows}
    drafted = generate(tiny_model(), PROMPTS, method=method, draft=draft, **request)
    jax.effects_barrier()
    assert tokens(drafted) == tokens(generate(tiny_model(), PROMPTS, **request))
    assert {*widths} == wanted
    if rows == 1:
        assert len(widths) == sum(c.target_forwards for c in drafted)


def test_a_tree_saves_forwards():
    drafted, _ = made("recycling", "recycling-80")
    expected, _ = made("ar")
    assert tokens(drafted) == tokens(expected)
    assert sum(c.target_forwards for c in drafted) < 0.9 * sum(c.target_forwards for c in expected)


@pytest.mark.slow
def test_a_model_that_drafts_for_itself_is_always_right():
    # One int8 product differs from the plain one by little, so all but ties are drafted rightly.
    drafted, _ = made("draft-model", "chain-2")
    expected, _ = made("ar")
    assert tokens(drafted) == tokens(expected)
    assert sum(c.target_forwards for c in drafted) < 0.5 * sum(c.target_forwards for c in expected)
