import dataclasses
import json
from pathlib import Path

import pytest

from eval.reports.report import run_program
from eval.sparse.learning import learned, read_run
from eval.sparse.overhead import choice_ms, decode_speeds, training_seconds, with_choosing
from eval.sparse.studies import STUDIES
from eval.sparse.study_plots import plot_lines
from eval.sparse_studies import Settings, main
from jax_smash.loading import load
from jax_smash.sparse import Quest, sparsified
from tests.eval.reference import small
from tests.model_directory import write_model


def test_the_command_line_writes_report_and_picture(tmp_path, monkeypatch, capsys):
    model = write_model(tmp_path / "model", max_position_embeddings=512)
    command = f"--study agreement --model {model} --num 2 --length 264"
    outputs = ["--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png")]
    monkeypatch.setattr("sys.argv", ["eval.sparse_studies", *command.split(), *outputs])
    with pytest.raises(SystemExit) as end:
        run_program(Settings, main)
    assert end.value.code in (0, None)
    assert "heads of a group" in capsys.readouterr().out
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["command"].startswith("python -m eval.sparse_studies --study agreement")
    assert [row["kind"] for row in report["rows"]] == ["heads of a group", "groups of a layer", "chance"]
    assert len(report["layers"]) == 2
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("study", "policies", "named"),
    [
        ("look-ahead", "oracle", ["own layer", "previous layer"]),
        (
            "oracles",
            "oracle",
            ["dense", "oracle", "oracle:evicting", "oracle:previous-layer", "oracle:first-layer", "random"],
        ),
        ("calibrated", "recency", ["dense", "recency", "recency:shares=b.recency-50.shares.json"]),
        ("throughput", "recency", ["dense", "recency"]),
    ],
)
def test_a_study_names_what_it_compares(study, policies, named, tmp_path):
    model = write_model(tmp_path / "model", max_position_embeddings=512)
    sizes = {"num": 2, "calibration": 2, "length": 264, "lengths": (64,), "new_tokens": 3, "repeats": 1}
    outputs = {"json": tmp_path / "b.json", "plot": tmp_path / "b.png"}
    main(Settings(study=study, model=str(model), policies=(policies,), **sizes, **outputs), [])
    rows = json.loads((tmp_path / "b.json").read_text())["rows"]
    assert {*named} <= {row.get("policy", row.get("kind")) for row in rows}
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


def test_speeds_have_a_row_a_policy_and_choices_a_time_of_their_own():
    sparse = sparsified(small(), Quest(budget=0.5, page_size=4, dense_layers=0))
    rows = decode_speeds({"dense": small(), "quest": sparse}, length=32, new_tokens=3, repeats=2)
    assert [row["policy"] for row in rows] == ["dense", "quest"]
    assert rows[0]["speedup"] == 1
    assert all(row["ms_per_step"] > 0 and len(row["ms_by_repeat"]) == 2 for row in rows)
    assert choice_ms(sparse, length=32, repeats=1) > 0
    assert choice_ms(small(), length=32, repeats=1) is None
    drawn = plot_lines(rows, title="a", value="ms_per_step", label="ms")
    assert drawn.startswith(b"\x89PNG")


def test_choosing_takes_what_a_step_takes_beyond_one_that_reads_the_last_slots():
    times = {"dense": [9.0, 9.0, 9.0], "quest": [5.0, 7.0, 6.0], "recency": [4.0, 4.5, 4.0]}
    rows = [{"policy": name, "ms_by_repeat": found} for name, found in times.items()]
    assert [row.get("choosing_ms") for row in with_choosing(rows, "recency")] == [None, 2.0, 0.0]


def test_the_overhead_of_a_policy_is_told_beside_recency(tmp_path):
    model = write_model(tmp_path / "model", max_position_embeddings=512)
    timed = {"lengths": (64,), "new_tokens": 3, "repeats": 1, "policies": ("random",)}
    main(Settings(study="overhead", model=str(model), length=264, json=tmp_path / "a.json", **timed), [])
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert [row["policy"] for row in rows] == ["dense", "random", "recency"]
    assert ["choosing_ms" in row for row in rows] == [False, True, True]
    assert rows[2]["choosing_ms"] == 0


def test_training_takes_what_its_speeds_tell():
    lines = [
        {"step": 5, "tokens_per_second": 100.0},
        {"step": 5, "held_out_loss": 1.0},
        {"step": 10, "tokens_per_second": 50.0},
    ]
    assert training_seconds(lines, 40) == 5 * 40 / 100 + 5 * 40 / 50
    with pytest.raises(ValueError, match="must tell tokens_per_second"):
        training_seconds([{"step": 5, "loss": 1.0}], 40)


PREDICTORS = {"small": {"kind": "per_head", "width": 4}, "deep": {"kind": "per_head", "attach": 1}}


def write_run(folder, *, predictors=PREDICTORS, means=({}, {})):
    """Writes what a run of eight rows of 512 tokens a step leaves, measured after so many times ten steps."""
    folder.mkdir()
    told = {"predictors": predictors, "batch_size": 8, "length": 512, "recall_share": 0.5}
    (folder / "settings.json").write_text(json.dumps(told))
    lines = [{"step": 5, "loss": 1.0}]
    lines += [{"step": 10 * (i + 1), "held_out_loss": 1.0, "held_out_means": found} for i, found in enumerate(means)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 2')
    return folder


def recalls(small, deep):
    told = {"small recall": small, "deep recall": deep, "small recent_recall": 0.25, "deep recent_recall": 0.5}
    return told | {"small loss": 2.0, "deep loss": 2.0}


def test_trained_predictors_stand_by_size_layer_and_tokens(tmp_path):
    model = write_model(tmp_path / "model", max_position_embeddings=512)
    run = write_run(tmp_path / "run", means=(recalls(0.5, 0.6), recalls(0.75, 0.7)))
    main(Settings(study="predictors", model=str(model), runs=(run,), length=264, output=tmp_path / "out"), [])
    report = json.loads((tmp_path / "out" / "study.json").read_text())
    assert (tmp_path / "out" / "study.png").read_bytes().startswith(b"\x89PNG")
    told = ("policy", "tokens", "score", "recent", "dense_layers", "budget")
    rows = [tuple(row[name] for name in told) for row in report["rows"]]
    assert rows == [("small", 81920, 0.75, 0.25, 1, 0.5), ("deep", 81920, 0.7, 0.5, 1, 0.5)]
    assert [(x["policy"], x["tokens"], x["score"]) for x in report["curve"] if x["policy"] == "small"] == [
        ("small", 40960, 0.5),
        ("small", 81920, 0.75),
    ]
    small, deep = (row["parameters"] for row in report["rows"])
    assert small < deep


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"predictors": None}, "runs must be ones of train.butler; .*run trained no predictors"),
        (
            {"predictors": {"small": {"kind": "per_head", "attach": 7}}},
            "attach must be from 0 to the base's last layer",
        ),
        ({"means": ()}, "run must have read held-out rows; it has not"),
    ],
)
def test_runs_that_show_nothing_are_refused(run, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        learned(write_run(tmp_path / "run", **{"means": (recalls(0.5, 0.6),)} | run), small().config)


def test_a_damaged_run_is_named(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"run: settings.json or metrics.jsonl is damaged"):
        read_run(run)


def test_the_report_is_written_though_the_picture_cannot_be_drawn(tmp_path, monkeypatch):
    def fails(*arguments, **options):
        raise OSError("no picture")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fails)
    model = write_model(tmp_path / "model", max_position_embeddings=512)
    run = write_run(tmp_path / "run", means=(recalls(0.5, 0.6),))
    settings = Settings(study="predictors", model=str(model), runs=(run,), length=264, output=tmp_path / "out")
    with pytest.raises(OSError, match="no picture"):
        main(settings, [])
    assert json.loads((tmp_path / "out" / "study.json").read_text())["rows"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": (64, 511)}, "lengths must be at most 510, so that 3 new tokens fit the 512 positions .* got 511"),
        ({"lengths": (64, 2), "budgets": ("40%",)}, "recency cannot be timed at 40% of 2 slots"),
        ({"runs": True}, "must tell tokens_per_second"),
    ],
)
def test_what_cannot_be_timed_is_refused_before_anything_is_timed(changes, message, tmp_path):
    model = write_model(tmp_path / "model", max_position_embeddings=512)
    if changes.get("runs"):
        changes = {"runs": (write_run(tmp_path / "run"),)}
    sizes = {"policies": ("recency",), "length": 264, "new_tokens": 3} | changes
    with pytest.raises(ValueError, match=message):
        STUDIES["overhead"].measure(Settings(study="overhead", model=str(model), **sizes), load(str(model)))


CALIBRATED = {"study": "calibrated", "json": Path("a.json")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 256}, "length must be over 256, the first position that counts; got 256"),
        ({"study": "look-ahead", "length": 257}, "length of look-ahead must be at least 258 tokens; got 257"),
        ({"study": "calibrated"}, "calibrated writes shares of heads beside its report: give --json"),
        (
            CALIBRATED | {"policies": ("quest", "dense")},
            "calibrated takes policies that choose slots a head; got dense",
        ),
        (CALIBRATED | {"policies": ("streaming",)}, "policies that choose slots a head; got streaming"),
        (CALIBRATED | {"policies": ("tokenselect",)}, "policies that choose slots a head; got tokenselect"),
        (CALIBRATED | {"budgets": ("50%", "100%")}, "budgets of calibrated must be below 100%"),
        ({"runs": (Path("nowhere"),)}, "runs go with overhead and predictors; got agreement"),
        ({"study": "predictors"}, "predictors shows runs of train.butler: give --runs"),
        ({"study": "predictors", "runs": (Path("a/run"), Path("b/run"))}, "which must differ; got run, run"),
        ({"json": Path("a.json"), "output": Path("a")}, "output holds report and picture: give neither"),
        ({"runs": (Path("nowhere"),), "study": "overhead"}, "nowhere has not"),
        ({"lengths": ()}, "lengths must be one or more"),
        ({"repeats": 0}, "repeats must be at least 1; got 0"),
        ({"budgets": ("0%",)}, "budgets must be shares over 0% and at most 100%"),
        ({"policies": ("guess",)}, "a policy must be one of"),
        ({"json": Path("nowhere/a.json")}, "nowhere"),
    ],
)
def test_what_cannot_be_studied_is_refused_before_anything_is_loaded(changes, message):
    settings = dataclasses.replace(Settings(study="agreement", model="no-such-model"), **changes)
    with pytest.raises((ValueError, OSError), match=message):
        settings.check()
