"""Policies with a trained predictor: where it comes from, what of it is compiled in, and what it costs."""

import dataclasses
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash import DraftOptions, generate
from jax_smash.cache import Block, SelectedCache, Selection, Write
from jax_smash.checkpoints.butler import read_butler, save_butler
from jax_smash.checkpoints.fingerprint import fingerprint
from jax_smash.decode.forced import forced_log_probs
from jax_smash.loading import weights_fingerprint
from jax_smash.sparse import (
    Butler,
    GroupedButler,
    LowRankKeys,
    PageGate,
    Quest,
    described,
    named_policy,
    predictors,
    sparse_step_bytes,
    sparsified,
)
from jax_smash.sparse.learned import FIRST
from tests.predictors import modules_of, sizes_of
from tests.tiny import tiny_model

SLOTS = 64
PROMPTS = [list(b"a text longer than is kept"), list(b"short"), list(b"neither of these two")]
FORMS = {"butler": Butler, "grouped": GroupedButler, "low-rank": LowRankKeys, "gate": PageGate}


def base():
    return tiny_model(layer_kinds=("full", "full"))


def modules(name, *, seed=3, config=None, **changes):
    return modules_of(sizes_of(config or base().config, FORMS[name].form, **changes), seed=seed)


def texts(model, **options):
    return [done.token_ids for done in generate(model, PROMPTS, max_new_tokens=12, slots=SLOTS, **options)]


def saved(folder, name, *, mark=None, **changes):
    made = modules(name, **changes)
    mark = mark or fingerprint(base().config, base().params["target"])
    save_butler(folder, made.config, made.params, base_fingerprint=mark, trained_length=32)
    return made


@pytest.mark.parametrize("name", FORMS)
def test_weights_of_a_predictor_are_parameters_of_the_program(name):
    policy = FORMS[name](budget=12, window=2)
    one, other = (sparsified(base(), policy, modules(name, seed=seed)) for seed in (3, 4))
    assert one.definition == other.definition
    assert hash(one.definition) == hash(other.definition)
    cache = one.definition.bind(one.params["target"]).init_cache(1, SLOTS, 4)

    def forward(params, cache, token):
        bound = one.definition.bind(params)
        block = Block.causal(jnp.ones(token.shape, bool))
        out = bound.forward(bound.embed(token), token, cache, block)
        return out.hidden, cache.commit(out.block_kv, Write(position=token, count=jnp.ones(1, jnp.int32)))

    traced = jax.make_jaxpr(forward)(one.params["target"], cache, jnp.zeros((1, 4), jnp.int32))
    assert sum(np.size(x) for x in traced.consts) < 64


def test_a_predictor_may_have_another_dtype_than_its_base():
    made = modules("grouped")
    made = dataclasses.replace(made, params=jax.tree.map(lambda x: x.astype(jnp.bfloat16), made.params))
    model = sparsified(base(), GroupedButler(budget=12, window=2), made)
    cache = model.definition.bind(model.params["target"]).init_cache(1, SLOTS, 4)
    assert {part.dtype for keys in cache.own.keys.values() for part in keys} == {jnp.dtype(jnp.bfloat16)}
    assert cache.cache.keys[0].dtype == jnp.float32
    assert all(len(set(said)) > 3 for said in texts(model))


@pytest.mark.slow
def test_a_record_that_ignores_the_path_would_be_found_out():
    """The control of the test that rejected nodes change nothing."""
    model = sparsified(base(), PageGate(budget=16), modules("gate"))
    bound = model.definition.bind(model.params["target"])
    cache = bound.init_cache(1, SLOTS, 16)
    token = jnp.arange(16, dtype=jnp.int32)[None]
    out = bound.forward(bound.embed(token), token, cache, Block.causal(jnp.ones((1, 16), bool), prompt=True))
    kept = []
    for path in (jnp.asarray([[0, 1, 2, 3, 4, 5]], jnp.int32), jnp.asarray([[0, 6, 7, 8, 9, 10]], jnp.int32)):
        write = Write(position=token, count=jnp.full(1, 6, jnp.int32), path=path)
        kept.append(cache.commit(out.block_kv, write).own.beside.pools[0].total)
    assert float(jnp.abs(kept[0] - kept[1]).max()) > 1e-3


@pytest.mark.slow
def test_a_policy_finds_its_predictor_by_folder(tmp_path):
    made = saved(tmp_path, "grouped")
    by_name = sparsified(base(), named_policy(f"grouped:{tmp_path},window=2", budget=12))
    assert by_name.definition.policy.trained_length == 32
    by_hand = sparsified(base(), GroupedButler(budget=12, window=2), made)
    assert texts(by_name) == texts(by_hand)
    assert texts(by_name) != texts(base())
    assert named_policy(f"grouped:path={tmp_path}") == GroupedButler(path=str(tmp_path))


@pytest.mark.slow
def test_drafting_for_itself_by_a_predictor_says_what_the_model_says(tmp_path):
    saved(tmp_path, "grouped", every=1)
    draft = DraftOptions(draft_model=f"sparse:grouped:{tmp_path},budget=12,window=2", tree="tree-7")
    done = generate(base(), PROMPTS, method="draft-model", draft=draft, max_new_tokens=12, slots=SLOTS)
    assert [c.token_ids for c in done] == texts(base())
    assert sum(c.drafted.kept[0] for c in done) > 0


def test_the_shipped_predictor_is_taken_where_no_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(predictors, "SHIPPED_PREDICTORS", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"policy grouped has no predictor for two-layer \(shipped: none\)"):
        sparsified(base(), GroupedButler())
    made = saved(tmp_path / "two-layer" / "grouped", "grouped")
    policy = GroupedButler(budget=12, window=2)
    assert texts(sparsified(base(), policy)) == texts(sparsified(base(), policy, made))
    with pytest.raises(
        FileNotFoundError, match=r"policy gate has no predictor for two-layer \(shipped: grouped for two-layer"
    ):
        sparsified(base(), PageGate())


def test_a_model_with_a_predictor_is_still_its_base(tmp_path):
    model = sparsified(base(), PageGate(budget=16), modules("gate"))
    assert weights_fingerprint(model) == weights_fingerprint(base())
    assert isinstance(model.definition.bind(model.params["target"]).init_cache(1, SLOTS, 4), SelectedCache)


REFUSED = [
    (
        lambda _: sparsified(base(), Butler(), modules("gate")),
        "Butler needs a predictor of the form per_head; got gate",
    ),
    (lambda _: sparsified(base(), Quest(dense_layers=0), modules("gate")), "Quest takes no predictor"),
    (lambda _: sparsified(base(), PageGate(page_size=8), modules("gate")), "page_size must be the gate's 4; got 8"),
    (
        lambda _: sparsified(base(), PageGate(budget=30), modules("gate")),
        "page_size must divide the budget of 30 slots",
    ),
    (lambda _: PageGate(top_p=0.0), "top_p must be over 0 and at most 1; got 0.0"),
    (lambda _: Butler(refresh=-1), "refresh must be at least 0; got -1"),
    (lambda _: named_policy("grouped:int8=true:int4=true"), "keys are kept in int8 or in int4; got both"),
    (lambda _: named_policy("grouped:heads=mean"), "heads must be sum or max; got 'mean'"),
    (
        lambda _: sparsified(base(), GroupedButler(int4=True), modules("grouped", int8=True)),
        "int4 needs a predictor whose own keys are not rounded to int8",
    ),
    (lambda _: named_policy("quest:folder"), "settings of quest must be among"),
    (
        lambda _: sparsified(base(), Butler(), dataclasses.replace(modules("butler"), base_fingerprint="0" * 64)),
        "the predictor was trained with a base whose weights have fingerprint 0000000000000000; those of two-layer",
    ),
    (lambda _: sparsified(base(), Butler(), modules("butler", config=tiny_model(d_model=64).config)), "d_model is 64"),
    (
        lambda _: sparse_step_bytes(base().config, base().params["target"], Butler(budget=64), batch=1, slots=512),
        "Butler has no predictor yet",
    ),
]


@pytest.mark.parametrize(("make", "said"), REFUSED, ids=[said[:40] for _, said in REFUSED])
def test_what_does_not_go_together_is_refused(make, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        make(tmp_path)


def test_files_of_another_base_or_form_are_refused(tmp_path):
    saved(tmp_path, "grouped", mark="1" * 64)
    with pytest.raises(ValueError, match="fingerprint 1111111111111111; got"):
        sparsified(base(), GroupedButler(path=str(tmp_path)))
    with pytest.raises(ValueError, match="PageGate needs a predictor of the form gate; got grouped"):
        sparsified(base(), PageGate(path=str(tmp_path)))
    with pytest.raises(FileNotFoundError, match=r"has no predictor of attention: butler\.json is missing"):
        sparsified(base(), Butler(path=str(tmp_path / "none")))


def test_a_text_longer_than_those_of_the_training_is_told_of(tmp_path, caplog):
    saved(tmp_path, "gate")
    assert read_butler(tmp_path).trained_length == 32
    model = sparsified(base(), PageGate(budget=16, path=str(tmp_path)))
    bound = model.definition.bind(model.params["target"])
    with caplog.at_level(logging.WARNING, "jax_smash"):
        bound.init_cache(1, 32, 4)
        assert not caplog.records
        bound.init_cache(1, SLOTS, 4)
    assert "room for 64 entries, and the predictor was trained on texts of 32" in caplog.text


def gated(page, *, budget=8, sinks=1):
    """Returns a gate's policy that ends at 0.7, and its view of a layer with 5 full pages and two entries more."""
    model = tiny_model(layer_kinds=("full", "full"), max_positions=512)
    gate = modules("gate", config=model.config, page=page)
    model = sparsified(model, PageGate(budget=budget * page, sinks=sinks, top_p=0.7), gate)
    policy, bound = model.definition.policy, model.definition.bind(model.params["target"])
    count = 5 * page + 2
    cache = bound.init_cache(1, 16 * page, count)
    token = jnp.ones((1, count), jnp.int32)
    position = jnp.arange(count, dtype=jnp.int32)[None]
    out = bound.forward(bound.embed(token), position, cache, Block.causal(jnp.ones((1, count), bool), prompt=True))
    return policy, cache.commit(out.block_kv, Write(position=position, count=jnp.full(1, count, jnp.int32))).layer(0)


def pages_of(found, page):
    """Returns the pages that each KV head reads of the first row."""
    return [sorted({int(s) // page for s in found.slots[0, h][found.valid[0, h]]}) for h in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("page", [4, 16], ids=["gathered", "whole"])
def test_a_sum_of_probabilities_ends_the_budget(page):
    policy, view = gated(page)
    likely = np.full((1, 2, 16), -np.inf, np.float32)
    likely[0, :, :5] = np.log([[0.05, 0.5, 0.1, 0.3, 0.05], [0.05, 0.8, 0.05, 0.05, 0.05]])
    found = policy.best(view, jnp.asarray(likely))
    assert isinstance(found, Selection)
    pages = pages_of(found, page)
    # The first page and the last, which is not full, are always read; the first counts.
    assert pages == [[0, 1, 3, 5], [0, 1, 5]]
    # What a kernel reads is the same.
    assert (found.pages is not None) == (page == 16)
    if found.pages is not None:
        assert found.pages.counts.tolist() == [[4, 3]]
        assert [sorted(found.pages.table[0, h, :n].tolist()) for h, n in enumerate((4, 3))] == pages


@pytest.mark.slow
def test_pages_without_a_score_yet_are_read_and_count_for_nothing_in_the_sum():
    policy, view = gated(4, sinks=0)
    likely = np.full((1, 2, 16), -np.inf, np.float32)
    # Pages 1 and 4 came after the last scores.
    likely[0, :, :5] = np.log([[0.5, 1, 0.35, 0.15, 1], [0.2, 1, 0.75, 0.05, 1]])
    scored = [pages_of(policy.best(view, jnp.asarray(likely.copy()).at[:, :, jnp.asarray([1, 4])].set(-jnp.inf)), 4)]
    likely[0, :, [1, 4]] = FIRST
    found = pages_of(policy.best(view, jnp.asarray(likely)), 4)
    assert scored == [[[0, 2, 5], [2, 5]]]
    assert found == [sorted({1, 4, *pages}) for pages in scored[0]]
    cut = np.asarray(policy._enough(view, jnp.asarray(likely)))
    assert not cut[0][:, [1, 4]].any()
    assert cut[0, :, [0, 3]].tolist() == [[False, True], [True, True]]


def test_scores_of_one_step_serve_as_many_as_are_asked_for():
    text = np.random.default_rng(2).integers(3, 250, (1, 40))

    def logs(**settings):
        tokens = jnp.asarray(text, jnp.int32)
        model = sparsified(base(), GroupedButler(budget=12, window=0, **settings), modules("grouped"))
        found = forced_log_probs(model.definition, model.params["target"], tokens, jnp.full(1, 40, jnp.int32), n=1)
        return np.asarray(found.chosen)

    assert np.array_equal(logs(), logs(refresh=1))
    assert not np.allclose(logs(), logs(refresh=4))


@pytest.mark.parametrize(
    ("name", "policy", "layers", "each", "beside"),
    [
        ("butler", Butler(budget=64), 1, 4 * 6 * 4 * 512, 2 * 8 * 4 * 512),
        ("grouped", GroupedButler(budget=64), 2, 2 * 6 * 4 * 512, 0),
        ("grouped", GroupedButler(budget=64, int8=True), 2, 2 * (6 + 4) * 512, 0),
        ("grouped", GroupedButler(budget=64, int4=True), 2, 2 * (3 + 2) * 512, 0),
        ("grouped", GroupedButler(budget=64, refresh=4), 2, 2 * 6 * 512 + 2 * 4 * 512, 0),
        ("low-rank", LowRankKeys(budget=64), 2, 2 * 6 * 4 * 512, 0),
        ("low-rank", LowRankKeys(budget=64, int4=True), 2, 2 * (3 + 2) * 512, 0),
        ("gate", PageGate(budget=64), 2, 2 * 6 * 4 * 128 // 2, 0),
    ],
)
def test_a_step_reads_the_keys_of_the_predictor_and_its_weights(name, policy, layers, each, beside, tmp_path):
    made = saved(tmp_path, name)
    policy = described(dataclasses.replace(policy, path=str(tmp_path)), "two-layer", base().config)
    step = sparse_step_bytes(base().config, base().params["target"], policy, batch=2, slots=512)
    assert step.scorer == 2 * (layers * each + beside)
    assert step.predictor == sum(x.nbytes for x in jax.tree.leaves(made.params))
    with_weights = sparsified(base(), dataclasses.replace(policy, budget=64))
    assert sparse_step_bytes(base().config, with_weights.params["target"], policy, batch=2, slots=512) == step
