import json
import subprocess
import sys

import pytest
import tyro

from eval.quality import Settings, main, measure
from eval.report import run_program
from eval.tasks.catalogue import TASKS
from jax_smash import methods
from tests.model_directory import write_model

FIELDS = {"method", "settings", "task", "metric", "n", "score", "interval"}


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


def test_every_method_is_asked_the_same(model, piqa, monkeypatch):
    monkeypatch.setitem(methods.METHODS, "again", methods.METHODS["ar"])
    settings = Settings(model=model, methods=("ar", "again", "ar"), tasks=("piqa",), data=(piqa,), count=2)
    found, details = measure(settings)
    assert [row["method"] for row in found["rows"]] == ["ar", "ar", "again", "again"]
    first, second = details[: len(details) // 2], details[len(details) // 2 :]
    assert [d | {"method": "again"} for d in first] == second


def test_the_command_line_measures_the_shipped_model(tmp_path):
    out = tmp_path / "out.json"
    command = "--model tiny --methods ar --tasks coreference,winogrande --lengths 64 --count 3 --batch-size 4 --json"
    done = subprocess.run(
        [sys.executable, "-m", "eval.quality", *command.split(), str(out)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "coreference" in done.stdout
    rows = json.loads(out.read_text())["rows"]
    assert [(row["task"], row["settings"].get("length"), row["n"]) for row in rows] == [
        ("coreference", 64, 3),
        ("winogrande", None, 3),
    ]


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
        ({"methods": ()}, "at least one method"),
        ({"lengths": (0,)}, "lengths must be at least 1; got 0"),
        ({"lengths": (20,)}, "length must be at least"),
        ({"count": 0}, "count must be at least 1; got 0"),
        ({"shots": -1}, "shots must be at least 0; got -1"),
        ({"model": "no-such-model"}, "no-such-model"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_written(model, tmp_path, changes, message):
    settings = Settings(**({"model": model, "tasks": ("coreference",), "json": tmp_path / "a.json"} | changes))
    with pytest.raises((ValueError, OSError), match=message):
        main(settings)
    assert not list(tmp_path.iterdir())


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
