import dataclasses
import json
from pathlib import Path

import pytest

from eval.by_task import Settings, _heats, main
from eval.drafting.told_trees import told_tree
from eval.exact.exactness_report import inputs_of
from eval.prompts.task_prompts import Task
from eval.reports.report import heading
from eval.timing.curves import scaled
from jax_smash.checkpoints.medusa import save_medusa
from jax_smash.checkpoints.smasher import save_smasher, tokenizer_sha256
from jax_smash.costs import CostCurve
from jax_smash.decode.programs import PROGRAMS
from jax_smash.loading import load
from tests.medusa import random_heads
from tests.model_directory import write_model
from tests.smashed import modules_for


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("by_task")
    model = write_model(folder / "model", num_hidden_layers=1)
    prompts = folder / "prompts.jsonl"
    lines = [
        {"prompt": "the cat sat on the mat", "category": "cats"},
        {"turns": ["a dog ran to the river", "and a cat"], "category": "dogs"},
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Settings(
        model=str(model),
        prompts=prompts,
        methods=("recycling:tree-3", "lookahead"),
        batch_sizes=(2,),
        max_new_tokens=6,
        settle_seconds=0,
        json=folder / "out.json",
    )


@pytest.fixture(scope="module")
def report(given):
    main(given)
    return json.loads(given.json.read_text())


@pytest.mark.slow
def test_a_report_has_a_row_a_method_tree_batch_and_task(report):
    kinds = [(row["method"], row["tree"], row["batch_size"], row["task"]) for row in report["rows"]]
    contenders = [("ar", None), ("recycling", "tree-3"), ("recycling", "chain-3"), ("lookahead", "auto")]
    assert kinds == [(*c, 2, task) for c in contenders for task in ("all", "cats", "dogs")]
    tasks = report["tasks"]
    assert [t["name"] for t in tasks] == ["cats", "dogs"]
    assert sum(len(t["prompts"]) + t["in_circles"] + t["too_short"] for t in tasks) == 3
    assert all(row["differing"] == 0 for row in report["rows"])
    tree = report["rows"][3]
    assert tree["answers"] == sum(len(t["prompts"]) for t in tasks)
    assert tree["mean_accepted_tokens"] >= 1
    assert tree["chain_mean_accepted_tokens"] == report["rows"][6]["mean_accepted_tokens"]
    assert tree["tokens_per_second"] > 0
    assert {"before", "after"} == tree["host_load_average"].keys()


@pytest.mark.slow
def test_a_run_goes_on_with_what_is_missing(given, report, capsys):
    main(dataclasses.replace(given, resume=True))
    assert json.loads(given.json.read_text())["rows"] == report["rows"]
    assert "is compiled" not in capsys.readouterr().err
    main(dataclasses.replace(given, resume=True, methods=("recycling:tree-3", "lookahead", "lookup:chain-2")))
    rows = json.loads(given.json.read_text())["rows"]
    assert rows[: len(report["rows"])] == report["rows"]
    assert [(row["method"], row["tree"]) for row in rows[len(report["rows"]) :]] == [("lookup", "chain-2")] * 3
    with pytest.raises(ValueError, match="was made with max_new_tokens 6; got 7"):
        main(dataclasses.replace(given, resume=True, max_new_tokens=7))


@pytest.mark.slow
def test_a_run_that_was_cut_off_is_complete_when_it_has_gone_on(given, tmp_path, monkeypatch):
    calls = []

    def cut_off():
        calls.append(None)
        if len(calls) == 2:  # Prompts were made, then the first method's rows.
            raise KeyboardInterrupt

    settings = dataclasses.replace(given, methods=("lookup:chain-2", "lookup:chain-3"), json=tmp_path / "a.json")
    with monkeypatch.context() as patched:
        patched.setattr(PROGRAMS, "forget", cut_off)
        with pytest.raises(KeyboardInterrupt):
            main(settings)
    report = json.loads(settings.json.read_text())
    assert not report["complete"]
    assert {row["tree"] for row in report["rows"]} == {None, "chain-2"}
    main(dataclasses.replace(settings, resume=True))
    again = json.loads(settings.json.read_text())
    assert again["complete"]
    assert {row["tree"] for row in again["rows"]} == {None, "chain-2", "chain-3"}


def test_times_of_another_device_are_not_gone_on_with(given, tmp_path):
    settings = dataclasses.replace(given, json=tmp_path / "a.json", resume=True)
    told = json.loads(json.dumps(heading("eval.by_task", [], dataclasses.asdict(settings))))
    inputs = inputs_of(settings.model, [settings.prompts, None], draft_model=settings.draft_model)
    settings.json.write_text(
        json.dumps(told | {"inputs": inputs, "rows": [], "device": told["device"] | {"kind": "x"}})
    )
    with pytest.raises(ValueError, match="was measured with kind 'x'; got 'cpu': its times are not continued"):
        main(settings)


def test_a_drafter_that_no_method_names_is_refused(given, tmp_path):
    heads = random_heads(load(given.model), num_heads=2)
    save_medusa(tmp_path / "run/drafter", heads.config, heads.params)
    settings = dataclasses.replace(given, drafters=(tmp_path / "run/drafter",), json=None)
    with pytest.raises(ValueError, match=r"no method drafts with run: name it in methods, as run or hybrid\+run"):
        settings.check()
    dataclasses.replace(settings, methods=("lookahead", "hybrid+run:chain-2")).check()


def test_the_tree_of_a_file_is_told_as_rows_hold_it(given, tmp_path):
    file = tmp_path / "tree.json"
    file.write_text("[[0], [1]]")
    settings = dataclasses.replace(given, methods=(f"recycling:{file}",), chains=False)
    (heat,) = _heats(settings, load(given.model), [Task("cats", [[1, 2, 3]])], 1)
    assert heat.names == {("recycling", told_tree(str(file)))}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"methods": ("ar",)}, "methods must be ones that draft"),
        ({"methods": ("guessing:chain-2",)}, "methods must be ones that draft, .*; got 'guessing'"),
        ({"methods": ("eagle:chain-2",)}, "method eagle needs a drafter: give --drafters FOLDER, and its name"),
        (
            {"methods": ("recycling",)},
            "recycling must have a tree, as in recycling:tree-15 or recycling:auto",
        ),
        ({"curves": ("flat",)}, "curves must be of none, right, cheap, dear; got flat"),
        ({"curves": ()}, "curves must be of none, right, cheap, dear; got none at all"),
        ({"methods": ("recycling:oak",)}, "tree must be auto, off, chain-N, .*, tree-N"),
        ({"batch_sizes": (0,)}, "batch_sizes must be one or more, each at least 1"),
        (
            {"batch_sizes": (8, 2), "peers": ("transformers", "transformers-lookup")},
            "batch_sizes must have 1, at which transformers-lookup is measured; got 8, 2",
        ),
        ({"num_prompts": 0}, "num_prompts must be at least 1; got 0"),
        ({"resume": True}, "resume needs the file to go on with"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_loaded(changes, said):
    with pytest.raises(ValueError, match=said):
        main(dataclasses.replace(Settings(model="absent"), **changes))


@pytest.mark.slow
def test_a_trained_drafter_is_named_by_its_run_and_drafts_beside_lookup_too(given, tmp_path):
    model = load(given.model)
    heads = random_heads(model, num_heads=2)
    save_medusa(tmp_path / "run/drafter", heads.config, heads.params, base_fingerprint=model.fingerprint)
    named = {"drafters": (tmp_path / "run/drafter",), "methods": ("run:chain-2", "hybrid+run:chain-2")}
    main(dataclasses.replace(given, **named, json=tmp_path / "named.json"))
    rows = json.loads((tmp_path / "named.json").read_text())["rows"]
    assert [(row["method"], row["tree"]) for row in rows if row["task"] == "all"] == [
        ("ar", None),
        ("run", "chain-2"),
        ("hybrid+run", "chain-2"),
    ]
    assert all(row["differing"] == 0 for row in rows)
    assert all(row["drafter"].startswith("run@") for row in rows if row["method"] != "ar")
    with pytest.raises(ValueError, match=r"methods must be ones that draft, .*run, hybrid\+run; got 'walk'"):
        main(dataclasses.replace(given, **named | {"methods": ("walk:chain-2",)}, overwrite=True))
    heads = random_heads(model, num_heads=1)
    save_medusa(tmp_path / "new/run", heads.config, heads.params, base_fingerprint=model.fingerprint)
    again = {"drafters": (tmp_path / "new/run",), "json": tmp_path / "named.json", "resume": True}
    with pytest.raises(ValueError, match=r"the report's rows of run were made with run@.*; got run@"):
        main(dataclasses.replace(given, **named | again))
    other = write_model(tmp_path / "other", num_hidden_layers=2)
    with pytest.raises(ValueError, match="run was trained for a base whose weights have fingerprint"):
        main(dataclasses.replace(given, **named, model=str(other), overwrite=True))


@pytest.mark.slow
def test_modules_of_hamburger_draft_a_chain_of_their_own(given, tmp_path):
    modules = modules_for(load(given.model), micro_steps=3)
    config = dataclasses.replace(modules.config, tokenizer_sha256=tokenizer_sha256(Path(given.model)))
    save_smasher(tmp_path / "run/drafter", config, modules.params)
    named = {"drafters": (tmp_path / "run/drafter",), "methods": ("run",), "json": tmp_path / "named.json"}
    main(dataclasses.replace(given, **named))
    rows = [row for row in json.loads(named["json"].read_text())["rows"] if row["task"] == "all"]
    assert [(row["method"], row["tree"], row.get("nodes"), row["differing"]) for row in rows] == [
        ("ar", None, 0, 0),
        ("run", "chain-2", 2, 0),
    ]
    with pytest.raises(ValueError, match="run drafts chain-2, as its modules were made; got run:chain-4"):
        main(dataclasses.replace(given, **named | {"methods": ("run:chain-4",), "overwrite": True}))


@pytest.mark.slow
def test_automatic_trees_begin_with_each_of_the_curves(given, tmp_path):
    main(
        dataclasses.replace(
            given, methods=("lookup:auto",), curves=("none", "right", "dear"), repeats=2, json=tmp_path / "auto.json"
        )
    )
    rows = [row for row in json.loads((tmp_path / "auto.json").read_text())["rows"] if row["task"] == "all"]
    assert [row["tree"] for row in rows] == [None, "auto", "auto right", "auto dear"]
    assert all(row["differing"] == 0 and row["speedup"] > 0 for row in rows)
    assert rows[1]["tree_source"].startswith("estimated")
    assert rows[2]["tree_source"].startswith("measured by jax-smash tune")


def test_a_curve_is_wrong_by_its_factor_and_no_drafted_step_is_cheaper_than_a_plain_one():
    curve = CostCurve(entries=(1, 2, 4), seconds=(1.0, 1.5, 6.0), batch=1, slots=64, source="made for a test")
    assert scaled(curve, 3.0).seconds == (1.0, 4.5, 18.0)
    assert scaled(curve, 1 / 3).seconds == pytest.approx((1.0, 1.0, 2.0))
