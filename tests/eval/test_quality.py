import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import tyro
from safetensors.numpy import load_file

from eval import quality
from eval.quality import Settings, main, measure
from eval.reports.report import run_program
from eval.scores.quality_rows import Contender
from eval.tasks.catalogue import TASKS
from jax_smash import methods
from tests.checkpoints import write_tensors
from tests.compiling import QUICKLY
from tests.model_directory import write_model

FIELDS = {"model", "method", "settings", "task", "metric", "n", "score", "interval", "difference"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random model with a context of 256 bytes."""
    return str(write_model(tmp_path_factory.mktemp("model"), num_hidden_layers=1))


@pytest.fixture(scope="module")
def piqa(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "piqa.jsonl"
    entry = {"goal": "Open a jar.", "sol1": "Twist it.", "sol2": "Sing.", "label": 1}
    path.write_text("".join(json.dumps(entry | {"goal": f"Open jar {i}."}) + "\n" for i in range(5)))
    return f"piqa={path}"


@pytest.fixture(scope="module")
def written(model, piqa, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    texts = ("The cat sat.", "A dog ran to the river.", "The end " * 9, "Tom", "left out")
    (folder / "held_out.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings = Settings(
        model=model,
        tasks=("piqa", "perplexity"),
        data=(piqa, f"perplexity={folder / 'held_out.jsonl'}"),
        count=4,
        context=64,
        batch_size=4,
        json=folder / "a.json",
        details=folder / "a.jsonl",
        plot=folder / "a.png",
    )
    main(settings, ["--tasks", "piqa,perplexity"])
    return folder


def test_a_row_has_every_field(written):
    report = json.loads((written / "a.json").read_text())
    assert report["command"] == "python -m eval.quality --tasks piqa,perplexity"
    assert [(row["task"], row["metric"], row["n"]) for row in report["rows"]] == [
        ("piqa", "acc", 4),
        ("piqa", "acc_norm", 4),
        ("perplexity", "perplexity", 4),
    ]
    for row in report["rows"]:
        assert row.keys() >= FIELDS
        assert row["method"] == "ar"
        assert row["interval"]["low"] <= row["score"] <= row["interval"]["high"]
        assert row["interval"]["confidence"] == 0.95


def test_details_hold_the_score_of_every_example(written):
    rows = json.loads((written / "a.json").read_text())["rows"]
    details = [json.loads(line) for line in (written / "a.jsonl").read_text().splitlines()]
    for row in rows[:2]:
        mine = [d for d in details if (d["task"], d["metric"]) == (row["task"], row["metric"])]
        assert len({d["example"] for d in mine}) == row["n"]
        assert sum(d["score"] for d in mine) / row["n"] == row["score"]
    documents = [d for d in details if d["task"] == "perplexity"]
    assert sum(d["tokens"] for d in documents) == rows[2]["tokens"]


def test_the_picture_is_one(written):
    assert (written / "a.png").read_bytes().startswith(b"\x89PNG")


def test_every_method_is_asked_the_same_and_an_equal_one_differs_by_exactly_nothing(model, piqa, monkeypatch):
    monkeypatch.setitem(methods.METHODS, "again", methods.METHODS["ar"])
    settings = Settings(model=model, methods=("again", "ar", "again"), tasks=("piqa",), data=(piqa,), count=2)
    found, details = measure(settings)
    assert [row["method"] for row in found["rows"]] == ["ar", "ar", "again", "again"]
    first, second = details[: len(details) // 2], details[len(details) // 2 :]
    assert [d | {"method": "again"} for d in first] == second
    for row in found["rows"][:2]:
        assert row["difference"] is None
    for row in found["rows"][2:]:
        difference = row["difference"]
        assert difference["baseline"] == {"model": model, "weights": "plain", "method": "ar"}
        assert (difference["value"], difference["higher"], difference["lower"]) == (0, 0, 0)
        # Two examples that agree say little.
        assert difference["interval"]["low"] < -0.5
        assert difference["interval"]["high"] > 0.5


def test_a_real_difference_from_another_model_is_found(model, tmp_path):
    # With all weights 0, every token is as likely as any other and greedy decoding writes the first for ever.
    blank = write_model(tmp_path / "blank", num_hidden_layers=1)
    write_tensors(blank, {name: np.zeros_like(t) for name, t in load_file(blank / "model.safetensors").items()})
    prompts, texts = tmp_path / "prompts.jsonl", tmp_path / "texts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"The {word} said"}) + "\n" for word in "abcdefgh"))
    texts.write_text("".join(json.dumps({"text": f"A text about {n * 37} things."}) + "\n" for n in range(8)))
    data = (f"variety={prompts}", f"perplexity={texts}")
    settings = Settings(
        model=str(blank), base=model, tasks=("variety", "perplexity"), data=data, max_new_tokens=24, context=64
    )
    rows = measure(settings)[0]["rows"]
    assert [row["model"] for row in rows] == [model] * 3 + [str(blank)] * 3
    (base_varied, base_mean, base_perplexity), (varied, mean, perplexity) = rows[:3], rows[3:]
    assert (varied["score"], mean["score"]) == (0, pytest.approx(1 / 21))
    for found, base in ((varied, base_varied), (mean, base_mean)):
        assert found["difference"]["value"] == pytest.approx(found["score"] - base["score"])
        assert found["difference"]["interval"]["high"] < -0.1
    assert perplexity["score"] == pytest.approx(259, rel=1e-4)
    difference = perplexity["difference"]
    assert difference["value"] == pytest.approx(math.log(259 / base_perplexity["score"]), abs=1e-4)
    bounds = difference["interval"]
    assert bounds["low"] < difference["value"] < bounds["high"]
    assert bounds["low"] > 0 or bounds["high"] < 0


def test_a_base_with_another_tokenizer_is_refused(model):
    with pytest.raises(ValueError, match="base must have the tokenizer of tiny; "):
        measure(Settings(model="tiny", base=model))


@pytest.mark.parametrize(
    ("changes", "first", "count"),
    [
        ({"methods": ("x", "y")}, Contender("tiny", "plain", "x"), 2),
        ({"methods": ("x", "ar", "x")}, Contender("tiny", "plain", "ar"), 2),
        ({"methods": ("x", "ar"), "weights": ("int8", "plain")}, Contender("tiny", "plain", "ar"), 4),
        ({"weights": ("int8",)}, Contender("tiny", "int8", "ar"), 1),
        ({"weights": ("int8",), "base": "tiny"}, Contender("tiny", "plain", "ar"), 2),
        ({"base": "other"}, Contender("other", "plain", "ar"), 2),
        ({"sparse": ("quest", "h2o:prompt=stepwise")}, Contender("tiny", "plain", "ar"), 3),
    ],
)
def test_the_baseline_goes_first_and_each_weights_are_loaded_once(changes, first, count):
    found = Settings(**changes).contenders()
    assert found[0] == first
    assert len(found) == len(set(found)) == count
    loads = [key for key, _ in itertools.groupby((c.model, c.weights) for c in found)]
    assert len(loads) == len(set(loads))


def test_the_shipped_model_is_measured():
    rows = measure(Settings(tasks=("coreference",), lengths=(64,), count=3, batch_size=4))[0]["rows"]
    assert [(row["model"], row["task"], row["settings"]["length"], row["n"]) for row in rows] == [
        ("tiny", "coreference", 64, 3)
    ]


def test_the_command_line_compares_weights(model, piqa, tmp_path):
    out, texts = tmp_path / "out.json", tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"A text about {n} things."}) + "\n" for n in range(3)))
    command = f"--tasks piqa,perplexity --data {piqa} perplexity={texts} --weights plain,int8 --count 3 --context 64"
    done = subprocess.run(
        [sys.executable, "-m", "eval.quality", "--model", model, *command.split(), "--json", str(out)],
        capture_output=True,
        text=True,
        env=os.environ | QUICKLY,
    )
    assert done.returncode == 0, done.stderr
    assert "perplexity" in done.stdout
    assert "difference" in done.stdout
    rows = json.loads(out.read_text())["rows"]
    told = [(row["settings"]["weights"], row["task"], row["metric"], row["n"]) for row in rows]
    measured = [("piqa", "acc", 3), ("piqa", "acc_norm", 3), ("perplexity", "perplexity", 3)]
    assert told == [(weights, *what) for weights in ("plain", "int8") for what in measured]
    assert [row["difference"] is None for row in rows] == [True] * 3 + [False] * 3
    assert rows[3]["difference"]["value"] == pytest.approx(rows[3]["score"] - rows[0]["score"])
    nats = math.log(rows[5]["score"] / rows[2]["score"])
    assert rows[5]["difference"]["value"] == pytest.approx(nats, abs=1e-9)
    assert nats != 0


@pytest.mark.parametrize("words", ["--tasks a,b --lengths 64,96", "--tasks a b --lengths 64 96"])
def test_several_values_stand_apart_by_commas_or_spaces(words):
    settings = tyro.cli(Settings, args=words.split())
    assert (settings.tasks, settings.lengths, settings.methods) == (("a", "b"), (64, 96), ("ar",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("magic",)}, "method must be one of ar.*; got 'magic'"),
        ({"tasks": ("magic",)}, "task must be one of .*; got 'magic'"),
        ({"tasks": ("arc_easy",)}, "arc_easy does not come with the project"),
        ({"data": ("piqa",)}, "data must be TASK=PATH or TASK=OWNER/NAME; got 'piqa'"),
        ({"tasks": ("piqa",), "data": ("piqa=missing.jsonl",)}, "data file does not exist: missing.jsonl"),
        ({"methods": ()}, "methods must name at least one; got none"),
        ({"weights": ()}, "weights must name at least one; got none"),
        ({"weights": ("int4",)}, "weights must be one of plain, int8; got 'int4'"),
        (
            {"tasks": ("winogrande",), "count": 999},
            "count must be at most 200, the examples of .*winogrande.jsonl; got 999",
        ),
        ({"tasks": ("variety",), "max_new_tokens": 3}, "max_new_tokens must be at least 4 for variety; got 3"),
        ({"base": "no-such-model"}, "no-such-model"),
        ({"tasks": ("ruler-vt",), "lengths": (100,)}, r"length must be at least \d+ for this example of ruler-vt"),
        ({"tasks": ("ruler",), "data": ("ruler-vt=x",)}, "data is given for ruler-vt, whose examples are drawn"),
        ({"tasks": ("ruler-qa_1",), "data": ("ruler-qa_1=x",)}, "file of questions does not exist: x"),
        ({"tasks": ("locations",), "methods": ("ar", "hamburger")}, "locations is read by plain decoding, not"),
        ({"lengths": (0,)}, "lengths must be at least 1; got 0"),
        ({"lengths": (20,)}, "length must be at least"),
        ({"count": 0}, "count must be at least 1; got 0"),
        ({"counts": ("coreference",)}, "counts must be TASK=N, each N at least 1; got 'coreference'"),
        ({"counts": ("coreference=0",)}, "counts must be TASK=N, each N at least 1; got 'coreference=0'"),
        ({"counts": ("piqa=3",)}, "a count is given for piqa, which is not among the tasks coreference"),
        ({"stride": 0}, "stride must be at least 1; got 0"),
        ({"json": None, "resume": True}, "resume goes with --json FILE"),
        ({"shots": -1}, "shots must be at least 0; got -1"),
        ({"model": "no-such-model"}, "no-such-model"),
        ({"page_size": 16}, "kv_budget and page_size go with sparse"),
        ({"sparse": ("quest",), "kv_budget": "40"}, "page_size must divide the budget of 40 slots; got 16"),
        (
            {"tasks": ("perplexity",), "sparse": ("streaming", "quest")},
            "must read the texts of perplexity step by step, as in quest:prompt=stepwise: quest reads them densely",
        ),
        ({"tasks": ("state", "winogrande"), "sparse": ("h2o",)}, "the texts of winogrande step by step, as in h2o"),
        ({"tasks": ("perplexity",), "sparse": ("snapkv",)}, "as in snapkv:rolling=true:prompt=stepwise: "),
        (
            {"tasks": ("perplexity_decoded",), "sparse": ("snapkv",)},
            "sparse must vote while perplexity_decoded is decoded, as in snapkv:rolling=true: snapkv votes at the end",
        ),
        ({"tasks": ("locations",), "sparse": ("snapkv:pool=5",)}, "as in snapkv:pool=5:rolling=true: "),
        ({"confidence": (0.5,)}, "confidence goes with method hamburger alone; got ar"),
        ({"methods": ("hamburger",)}, "has no HAMburger modules in .*; give --modules FOLDER"),
        ({"methods": ("hamburger",), "confidence": (0.5, 1.5)}, "confidence must be over 0 and at most 1; got 1.5"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_written(model, tmp_path, changes, message):
    settings = Settings(**({"model": model, "tasks": ("coreference",), "json": tmp_path / "a.json"} | changes))
    with pytest.raises((ValueError, OSError), match=message):
        main(settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("tasks", "policies"),
    [
        (("recall", "babi", "variety"), ("quest", "snapkv", "h2o", "dense", "streaming")),
        (("perplexity", "winogrande"), ("quest:prompt=stepwise", "dense", "streaming")),
        (("perplexity", "locations"), ("snapkv:rolling=true:prompt=stepwise",)),
        (("perplexity_decoded", "locations"), ("quest", "h2o:prompt=stepwise", "snapkv:rolling=true", "streaming")),
    ],
)
def test_policies_that_act_in_every_task_are_accepted(model, tasks, policies):
    Settings(model=model, tasks=tasks, sparse=policies).check()


def test_chat_without_a_template_is_refused(tmp_path):
    write_model(tmp_path, template=None, num_hidden_layers=1)
    with pytest.raises(ValueError, match="no chat template"):
        measure(Settings(model=str(tmp_path), chat=True))


def test_a_context_larger_than_the_models_is_refused(model, piqa):
    with pytest.raises(ValueError, match="from 2 to the model's 256; got 999"):
        measure(Settings(model=model, tasks=("piqa",), data=(piqa,), context=999))


def test_outputs_that_exist_or_are_the_same_are_refused(model, tmp_path):
    out = tmp_path / "a.json"
    with pytest.raises(ValueError, match="output files must differ"):
        main(Settings(model=model, json=out, details=out))
    out.write_text("mine")
    with pytest.raises(FileExistsError, match="output file exists"):
        main(Settings(model=model, details=out))
    assert out.read_text() == "mine"


@pytest.fixture
def asked(monkeypatch):
    """Names of the sets that are asked, in order; the program is killed before the one numbered `stop`."""
    names, measured = [], quality._measured

    def counted(item, engine, contender):
        if len(names) == counted.stop:
            raise KeyboardInterrupt
        names.append((contender.weights, item.task))
        return measured(item, engine, contender)

    counted.stop, counted.names = None, names
    monkeypatch.setattr(quality, "_measured", counted)
    return counted


def several(model, piqa, folder, **changes):
    data, texts = (piqa, f"perplexity={folder / 'texts.jsonl'}"), folder / "texts.jsonl"
    if not texts.exists():
        texts.write_text("".join(json.dumps({"text": f"A text about {n * 7} things."}) + "\n" for n in range(4)))
    options = {"tasks": ("piqa", "perplexity"), "data": data, "weights": ("plain", "int8"), "context": 64}
    return Settings(**({"model": model, "json": folder / "a.json", "details": folder / "a.jsonl"} | options | changes))


@pytest.mark.parametrize("stop", [1, 3])
def test_a_run_that_is_killed_goes_on_behind_its_last_task_and_finds_the_same(model, piqa, tmp_path, asked, stop):
    once, again = tmp_path / "once", tmp_path / "again"
    once.mkdir()
    again.mkdir()
    main(several(model, piqa, once), [])
    order = list(asked.names)
    assert order == [("plain", "piqa"), ("plain", "perplexity"), ("int8", "piqa"), ("int8", "perplexity")]
    asked.names.clear()
    asked.stop = stop
    with pytest.raises(KeyboardInterrupt):
        main(several(model, piqa, again), [])
    partial = again / "a.json.partial"
    partial.write_bytes(partial.read_bytes() + b'{"set": "cut o')
    with pytest.raises(
        FileExistsError, match=r"finished tasks are in .*: --resume keeps them, --overwrite starts again"
    ):
        main(several(model, piqa, again), [])
    asked.names.clear()
    asked.stop = None
    main(several(model, piqa, again, resume=True), [])
    assert asked.names == order[stop:]
    reports = [json.loads((folder / "a.json").read_text()) for folder in (once, again)]
    shown = json.dumps(reports[0]["rows"]).replace(str(once), str(again))
    assert shown == json.dumps(reports[1]["rows"])
    assert (once / "a.jsonl").read_text().replace(str(once), str(again)) == (again / "a.jsonl").read_text()
    assert {path.name for path in again.iterdir()} == {"a.json", "a.jsonl", "texts.jsonl"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts": ("piqa=2",)}, r"was begun with counts .*; got .*piqa=2.*: resume as it was begun, or start again"),
        ({"context": 48}, 'was begun with context "64"; got "48"'),
        ({"batch_size": 3}, 'was begun with batch_size "8"; got "3"'),
    ],
)
def test_a_run_with_other_options_is_not_resumed_and_keeps_what_was_finished(
    model, piqa, tmp_path, asked, changes, message
):
    asked.stop = 1
    with pytest.raises(KeyboardInterrupt):
        main(several(model, piqa, tmp_path), [])
    kept = (tmp_path / "a.json.partial").read_bytes()
    with pytest.raises(ValueError, match=message):
        main(several(model, piqa, tmp_path, resume=True, **changes), [])
    assert (tmp_path / "a.json.partial").read_bytes() == kept


def test_a_run_whose_data_have_changed_is_not_resumed(model, piqa, tmp_path, asked):
    asked.stop = 1
    with pytest.raises(KeyboardInterrupt):
        main(several(model, piqa, tmp_path), [])
    with open(tmp_path / "texts.jsonl", "a") as file:
        file.write('{"text": "One more."}\n')
    with pytest.raises(ValueError, match="was begun with files "):
        main(several(model, piqa, tmp_path, resume=True), [])


@pytest.mark.parametrize(
    ("name", "before", "message"),
    [
        ("device", {"platform": "tpu", "kind": "TPU v5e"}, 'was begun with device .*TPU v5e.*; got .*"cpu"'),
        ("versions", {"jax": "0.1"}, r'was begun with versions \{"jax": "0.1"\}; got .*flax'),
    ],
)
def test_a_run_of_another_device_or_of_other_versions_is_not_resumed(model, piqa, tmp_path, name, before, message):
    settings = Settings(model=model, tasks=("piqa",), data=(piqa,), json=tmp_path / "a.json", resume=True)
    quality.finished_tasks(settings).add({}, 0, [])
    begun, *lines = map(json.loads, settings.partial().read_text().splitlines())
    begun["run"][name] = before
    settings.partial().write_text("".join(json.dumps(line) + "\n" for line in (begun, *lines)))
    with pytest.raises(ValueError, match=message):
        quality.finished_tasks(settings)


def test_a_run_of_other_code_is_not_resumed(model, piqa, tmp_path):
    settings = Settings(model=model, tasks=("piqa",), data=(piqa,), json=tmp_path / "a.json", resume=True)
    quality.finished_tasks(settings).add({}, 0, [])
    begun, line = map(json.loads, settings.partial().read_text().splitlines())
    line["code"]["eval/quality.py"] = "0" * 64
    settings.partial().write_text("".join(json.dumps(line) + "\n" for line in (begun, line)))
    with pytest.raises(ValueError, match=r"was begun by another eval/quality\.py: its tasks are not kept"):
        quality.finished_tasks(settings)


def test_what_a_share_of_a_text_is_at_least_is_told(model, piqa, caplog):
    policy = "oracle:prompt=stepwise"
    measure(Settings(model=model, tasks=("piqa",), data=(piqa,), count=1, sparse=(policy,), kv_budget="25%"))
    said = [record.getMessage() for record in caplog.records if record.name == "jax_smash"]
    assert said == ["jax-smash: a budget of 25% of a text is at least 4 slots, which are always read"]


@pytest.mark.parametrize(
    ("policy", "file"), [("grouped:made", "made/butler.json"), ("recency:shares=made/a", "made/a")]
)
def test_a_run_whose_policy_is_read_from_other_files_is_not_resumed(model, piqa, tmp_path, monkeypatch, policy, file):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").mkdir()
    (tmp_path / file).write_text('{"shares": [[1.0, 0.5]]}')
    settings = Settings(model=model, tasks=("piqa",), data=(piqa,), sparse=(policy,), json=tmp_path / "a.json")
    quality.finished_tasks(settings).add({}, 0, [])
    resumed = dataclasses.replace(settings, resume=True)
    assert quality.finished_tasks(resumed).get({}, 0) == []
    (tmp_path / file).write_text('{"shares": [[1.0, 0.25]]}')
    with pytest.raises(ValueError, match="was begun with files "):
        quality.finished_tasks(resumed)


def test_overwriting_starts_again(model, piqa, tmp_path, asked):
    asked.stop = 1
    with pytest.raises(KeyboardInterrupt):
        main(several(model, piqa, tmp_path), [])
    asked.stop = None
    asked.names.clear()
    main(several(model, piqa, tmp_path, overwrite=True, weights=("plain",)), [])
    assert asked.names == [("plain", "piqa"), ("plain", "perplexity")]
    assert not (tmp_path / "a.json.partial").exists()


def test_each_task_may_have_a_count_of_its_own(model, piqa, tmp_path):
    rows = measure(several(model, piqa, tmp_path, json=None, count=3, counts=("piqa=2",), weights=("plain",)))[0][
        "rows"
    ]
    assert [(row["task"], row["n"]) for row in rows] == [("piqa", 2), ("piqa", 2), ("perplexity", 3)]


def test_a_bad_line_is_one_line_and_a_status(model, tmp_path, monkeypatch):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"goal": "?", "sol1": "a", "sol2": "b", "label": 7}\n')
    monkeypatch.setattr("sys.argv", ["quality", "--model", model, "--tasks", "piqa", "--data", f"piqa={bad}"])
    with pytest.raises(SystemExit) as end:
        run_program(Settings, main)
    assert str(end.value).startswith(f'error: {bad}, line 1: expected a number "label" from 0 … 1; got 7')
    assert "\n" not in str(end.value)


def test_every_task_is_named_in_the_help():
    assert all(name in Settings.__doc__ for name in TASKS)
