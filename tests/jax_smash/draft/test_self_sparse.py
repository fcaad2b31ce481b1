"""A model that drafts with a part of its own cache: its text, its memory, and what its policy learns."""

import functools

import jax
import numpy as np
import pytest

from jax_smash import DraftOptions, generate
from jax_smash.cache import SelectedCache
from jax_smash.checkpoints.butler import save_butler
from jax_smash.checkpoints.fingerprint import fingerprint
from jax_smash.methods import make_method
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from jax_smash.sparse import Learned, named_policy, sparsified
from tests.predictors import modules_of, sizes_of
from tests.tiny import tiny_model

SLOTS = 64
PROMPTS = ["the cat sat on the mat. the cat", "a b a b a b", "x", "to be or not to be, to be or"]
PENALISED = SamplingOptions(temperature=0.7, repetition_penalty=1.3, presence_penalty=0.4, logit_bias={40: 2.0})
CHOICES = [SamplingOptions(), SamplingOptions(temperature=0.8, top_k=20), PENALISED, SamplingOptions()]
QUEST = "quest:budget=12,page_size=4,dense_layers=0"
POLICIES = [QUEST, "streaming:slots=12,sinks=2"]
LEARNED = {
    "per_head": "butler:{},budget=12",
    "grouped": "grouped:{},budget=12,window=2,int8=true",
    "gate": "gate:{},budget=16",
}
MORE = [
    "tokenselect:budget=12,sinks=2,window=4",
    "recency:budget=12",
    "random:budget=12",
    "oracle:budget=12",
    "oracle:budget=50%",
]


def model():
    return tiny_model(layer_kinds=("full", "full"), stop_tokens=(10,))


@functools.cache
def said(method, **draft):
    options = {"sampling": CHOICES, "max_new_tokens": 24, "slots": SLOTS}
    return generate(model(), PROMPTS, method=method, draft=DraftOptions(**draft), **options)


def tokens(completions):
    return [done.token_ids for done in completions]


@pytest.mark.parametrize("policy", [*POLICIES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_text_is_plain_decodings_whatever_the_policy(policy):
    done = said("self-sparse", tree="chain-3", sparse=policy)
    assert tokens(done) == tokens(said("ar"))
    kept = sum(c.drafted.kept[0] for c in done) / sum(c.drafted.tried[0] for c in done)
    assert 0.05 < kept < 1, "drafts must be good, and sometimes wrong, for the test to say anything"


@pytest.fixture
def predictor(tmp_path):
    """Returns the name of a policy whose predictor is saved in a folder, by its form."""

    def saved(form, **sizes):
        base = model()
        made = modules_of(sizes_of(base.config, form, **sizes))
        mark = fingerprint(base.config, base.params["target"])
        save_butler(tmp_path, made.config, made.params, base_fingerprint=mark, trained_length=SLOTS)
        return LEARNED[form].format(tmp_path)

    return saved


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", ["gate", *(pytest.param(form, marks=pytest.mark.slow) for form in (*LEARNED, "ahead") if form != "gate")]
)
def test_text_is_plain_decodings_whatever_predicts(predictor, form):
    """The paper's form attends to drafted entries, so whole drafts are read again; the others go on level by level."""
    policy = predictor("grouped", look_ahead=1) if form == "ahead" else predictor(form)
    done = said("self-sparse", tree="chain-3", sparse=policy)
    assert tokens(done) == tokens(said("ar"))
    kept = sum(c.drafted.kept[0] for c in done) / sum(c.drafted.tried[0] for c in done)
    assert 0.05 < kept < 1


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [3, 1, 8])
def test_text_does_not_depend_on_the_batch(batch_size):
    options = {"sampling": CHOICES * 2, "max_new_tokens": 12, "slots": SLOTS, "batch_size": batch_size}
    draft = DraftOptions(tree="chain-3", sparse=QUEST)
    done = generate(model(), PROMPTS * 2, method="self-sparse", draft=draft, **options)
    assert tokens(done) == [row[:12] for row in tokens(generate(model(), PROMPTS * 2, **options))]


@pytest.mark.slow
def test_a_copy_in_int8_drafts_and_changes_no_text():
    done = said("self-sparse", tree="chain-3", sparse=QUEST, draft_model="int8")
    assert tokens(done) == tokens(said("ar"))
    assert sum(c.drafted.kept[0] for c in done) > 0


@pytest.mark.slow
def test_where_nothing_is_drafted_a_step_emits_a_token():
    done = said("self-sparse", tree="off", sparse=QUEST)
    assert tokens(done) == tokens(said("ar"))
    assert all(c.target_forwards == c.new_tokens - 1 for c in done)


def session(method, which=None, **draft):
    which = model() if which is None else which
    made = make_method(which, method, draft=DraftOptions(**draft), slots=SLOTS, batch=2)
    options = {"slots": SLOTS, "max_new_tokens": 20, "sampling": [SamplingOptions()] * 2, "seeds": [0, 1]}
    rows = Session(which, made, **options)
    rows.read([which.encode(text) for text in PROMPTS[:2]])
    while rows.run(4):
        pass
    return rows


@pytest.mark.parametrize("form", ["quest", *(pytest.param(form, marks=pytest.mark.slow) for form in LEARNED)])
def test_there_is_one_set_of_keys_and_values_and_its_policy_learns_from_checks_alone(predictor, form):
    """What is kept for the policy is what would be where every token was read by the whole cache."""
    name = QUEST if form == "quest" else predictor(form)
    rows = session("self-sparse", tree="chain-3", sparse=name)
    assert jax.tree.leaves(rows.state.rows.memory["drafter"]) == []
    held = rows.state.rows.cache
    assert isinstance(held, SelectedCache)
    whole = read_whole(name, rows, held.slot_length)
    assert np.array_equal(whole.slot_length, held.slot_length)
    for layer in range(2):
        for row, n in enumerate(held.slot_length):
            for part in ("keys", "values"):
                near(*(getattr(cache.cache, part)[layer][row, :, :n] for cache in (held, whole)))
    if not isinstance(held.policy, Learned):
        near((held.channels[0].low, held.channels[0].high), (whole.channels[0].low, whole.channels[0].high))
        return
    unit = held.policy.unit
    for layer, keys in held.own.keys.items():
        for ours, theirs in zip(keys, whole.own.keys[layer], strict=True):
            for row, n in enumerate(held.slot_length):
                a, b = (np.asarray(part[row, :, : n // unit], np.float32) for part in (ours, theirs))
                assert np.abs(a - b).max() <= (1 if ours.dtype == np.int8 else 1e-4)


def read_whole(name, rows, lengths):
    """Returns the cache of a model that reads the same texts as prompts."""
    plain = sparsified(model(), named_policy(name))
    method = make_method(plain, "ar", slots=SLOTS, batch=2)
    sampling = [SamplingOptions()] * 2
    read = Session(plain, method, slots=SLOTS, max_new_tokens=2, sampling=sampling, seeds=[0, 1])
    texts = [model().encode(text) + out for text, out in zip(PROMPTS, rows.outputs(), strict=False)]
    read.read([text[:n] for text, n in zip(texts, lengths, strict=True)], limits=[1, 1])
    return read.state.rows.cache


def near(found, expected):
    assert jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b, rtol=1e-4, atol=1e-4), found, expected))


@pytest.mark.slow
def test_more_of_the_cache_drafts_better():
    kept = {}
    for budget in (12, 32):
        done = said("self-sparse", tree="chain-3", sparse=f"oracle:budget={budget}")
        kept[budget] = sum(sum(c.drafted.kept) for c in done)
    assert kept[32] > kept[12] > 0
