import dataclasses
import json
from pathlib import Path

import pytest

from eval.reports.report import run_program
from eval.sparse.overhead import choice_ms, decode_speeds, training_seconds
from eval.sparse.study_plots import plot_lines
from eval.sparse_studies import Settings, main
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


def test_training_takes_what_its_speeds_tell():
    lines = [
        {"step": 5, "tokens_per_second": 100.0},
        {"step": 5, "held_out_loss": 1.0},
        {"step": 10, "tokens_per_second": 50.0},
    ]
    assert training_seconds(lines, 40) == 5 * 40 / 100 + 5 * 40 / 50
    with pytest.raises(ValueError, match="must tell tokens_per_second"):
        training_seconds([{"step": 5, "loss": 1.0}], 40)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 256}, "length must be over 256, the first position that counts; got 256"),
        ({"study": "calibrated"}, "calibrated writes shares of heads beside its report: give --json"),
        ({"runs": (Path("nowhere"),)}, "runs go with overhead; got agreement"),
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
