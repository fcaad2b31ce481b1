"""The page of support says what the library does and refuses."""

import dataclasses
import functools

import pytest

from eval.compile import Settings as Compiled
from eval.reports.claims.support import (
    CAPABILITIES,
    COMPILED,
    PARTS,
    YES,
    accepted_rules,
    devices,
    drafts,
    measured,
    methods,
    parts_by_device,
    support_page,
)
from jax_smash import generate
from jax_smash.draft.verify.named import VERIFICATIONS
from jax_smash.loading import quantised
from jax_smash.methods import METHODS, OPTIONS, RANDOM, REACH, DraftOptions, SmashOptions, make_method
from jax_smash.sampling import SamplingOptions
from jax_smash.sharding import make_mesh, mesh_of, place
from tests.drafting import other_model
from tests.eval.reports.claims.reports import report, speed_row
from tests.smashed import smashed_model

PROMPTS = ["the cat sat on the mat. the cat", "a b a b a b", "x"]
PENALISED = SamplingOptions(
    temperature=0.7, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3, logit_bias={40: 2.0}
)
ROWS = [SamplingOptions(), SamplingOptions(temperature=0.8, top_k=20, top_p=0.95, min_p=0.01), PENALISED]
QUICK = ("recycling", "hamburger")


def drafting(method):
    """Returns options of drafting that compile one small tree."""
    if method == "draft-model":
        return DraftOptions(draft_model=other_model(), tree="chain-2")
    if method in ("eagle", "medusa", "chimera", "dflash"):
        return DraftOptions(drafter=RANDOM, tree="chain-2")
    return (
        DraftOptions(tree="chain-2") if "tree" in OPTIONS.get(method, ()) and method != "lookahead" else DraftOptions()
    )


@functools.cache
def written(method, *, mode="exact"):
    """Returns the tokens of a batch under everything that every method takes."""
    whole = quantised(smashed_model(stop_tokens=(10,)))
    model = dataclasses.replace(whole, params=place(whole.params, make_mesh("data=2,tp=2")))
    assert mesh_of(model.params).size == 4
    completions = generate(
        model,
        PROMPTS,
        method=method,
        draft=drafting(method),
        smash=SmashOptions(mode=mode) if method == "hamburger" else SmashOptions(),
        sampling=ROWS,
        regex="[a-z ,.]{4,60}",
        stop=["zz"],
        log_probs=2,
        max_new_tokens=10,
        batch_size=len(PROMPTS),
    )
    assert all(len(c.log_probs) == c.new_tokens for c in completions)
    assert all(set(c.text) <= set("abcdefghijklmnopqrstuvwxyz ,.") for c in completions)
    return [c.token_ids for c in completions]


@pytest.mark.parametrize(
    "method", [m if m in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in METHODS if m != "ar"]
)
def test_a_method_takes_everything_that_the_table_says_yes_to_and_writes_plain_decodings_text(method):
    row = dict(zip(methods().header, line_of(methods(), method), strict=True))
    assert all(row[words] == YES for words in (*CAPABILITIES.values(), "greedy", "temperature"))
    assert written(method) == written("ar")


def line_of(table, method):
    (line,) = [line for line in table.lines if line[0] == f"`{method}`"]
    return line


def test_every_method_has_a_row_in_every_table_of_methods():
    for table in (methods(), devices({})):
        assert [line[0] for line in table.lines] == [f"`{name}`" for name in METHODS]
    assert [line[0] for line in drafts().lines] == [f"`{name}`" for name in OPTIONS]


@pytest.mark.parametrize("rule", VERIFICATIONS)
@pytest.mark.parametrize("method", METHODS)
def test_a_rule_of_verification_is_taken_or_refused_as_the_table_says(method, rule):
    model = smashed_model()
    draft = dataclasses.replace(drafting(method), verify=rule)
    if method not in OPTIONS and rule != "coupling":
        assert line_of(methods(), method)[4] == "–"
        with pytest.raises(ValueError, match=f"verify does not go with method {method}"):
            make_method(model, method, draft=draft)
    elif method in OPTIONS and rule not in accepted_rules(method):
        assert line_of(methods(), method)[4] == "refused"
        with pytest.raises(ValueError, match=f"verify {rule} is for drawn tokens"):
            make_method(model, method, draft=draft)
    else:
        assert make_method(model, method, draft=draft).name == method
    assert (line_of(methods(), method)[4] == YES) == (method in ("draft-model", "dflash"))


def test_what_is_said_to_be_missing_is_refused():
    model = smashed_model()
    for method in ("ar", "hamburger"):
        with pytest.raises(ValueError, match=f"tree does not go with method {method}"):
            make_method(model, method, draft=DraftOptions(tree="chain-4"))
    with pytest.raises(ValueError, match="tree off does not go with method draft-model"):
        make_method(model, "draft-model", draft=DraftOptions(tree="off", draft_model="int8"))
    page = support_page({}, tuple(REACH))
    assert "`--tree auto` sizes the trees of `recycling`, `lookup`, `suffix` and `hybrid`, and those of trained" in page


def test_a_method_is_measured_on_a_device_where_a_report_of_its_speed_is_kept():
    rows = [speed_row(), speed_row("recycling int8"), speed_row("hamburger, groups of 2")]
    on_gpu = report("gpu", rows=rows, device={"platform": "gpu"})
    reports = {"gpu": on_gpu, "cpu": report("cpu", rows=rows[:1]), "other": report("other", "eval.quality", rows)}
    assert line_of(devices(reports), "recycling") == [
        "`recycling`",
        "run",
        "measured: [gpu](results/gpu.json)",
        "compiled only",
    ]
    assert line_of(devices(reports), "ar")[1:3] == [
        "run, measured: [cpu](results/cpu.json)",
        "measured: [gpu](results/gpu.json)",
    ]
    assert line_of(devices(reports), "hamburger")[2] == "measured: [gpu](results/gpu.json)"
    assert line_of(devices(reports), "lookup")[2] == "not run"
    assert measured(reports, "eval.speed", "tpu") == []


def test_a_kernel_is_measured_where_a_report_of_kernels_is_kept():
    kept = {"k": report("k", "eval.kernels", device={"platform": "gpu"})}
    lines = {line[0]: line for line in parts_by_device(kept).lines}
    assert lines["kernel of tree attention"][2] == "measured: [k](results/k.json)"
    assert lines["int8 weights"][2] == "not run"
    assert [line[0] for line in parts_by_device({}).lines] == [part[0] for part in PARTS]


def test_every_method_is_compiled_for_tpus():
    trees = dict.fromkeys(REACH, "tree-7")
    for name in COMPILED:
        draft_model = "int8" if name == "draft-model" else None
        Compiled("llama-100m", "cpu", method=name, tree=trees.get(name, "auto"), draft_model=draft_model).check()
    assert tuple(METHODS) == COMPILED
