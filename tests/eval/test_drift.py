import json
from pathlib import Path

import pytest

from eval.drift import Settings, main, measure
from eval.reports.report import run_program
from tests.model_directory import write_model, write_modules

NEW = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random model with random modules beside it: what the modules say is as good as noise."""
    path = write_model(tmp_path_factory.mktemp("model") / "base", num_hidden_layers=1)
    write_modules(path / "hamburger", path)
    return str(path)


@pytest.fixture(scope="module")
def settings(model):
    return Settings(
        model=model,
        modes=("blind", "exact"),
        confidence=(0.01, 1.0),
        new_tokens=NEW,
        num_prompts=3,
        prompt_tokens=12,
        batch_size=4,
    )


@pytest.fixture(scope="module")
def rows(settings):
    return {(row["mode"], row["confidence"]): row for row in measure(settings)}


@pytest.mark.slow
def test_plain_decoding_is_measured_first_and_then_each_mode_at_each_confidence(rows):
    assert list(rows) == [("ar", None), *((m, c) for m in ("blind", "exact") for c in (0.01, 1.0))]


@pytest.mark.slow
def test_all_texts_have_all_positions(rows):
    for row in rows.values():
        assert (row["texts"], row["tokens"]) == (3, 3 * NEW)
        assert [(b["first"], b["last"], b["tokens"]) for b in row["by_position"]] == [(0, 31, 96), (32, 39, 24)]


@pytest.mark.parametrize(
    "way",
    [("ar", None), ("exact", 0.01), ("exact", 1.0), ("blind", 1.0)],
    ids=lambda part: str(part),
)
@pytest.mark.slow
def test_the_control_makes_no_error_nor_does_a_mode_that_is_plain_decoding(rows, way):
    assert (rows[way]["error"], rows[way]["nats_below_best"], rows[way]["texts_with_errors"]) == (0, 0, 0)
    assert rows[way]["distinct_4grams"] == rows["ar", None]["distinct_4grams"]


@pytest.mark.slow
def test_untrained_modules_that_are_trusted_make_many(rows):
    found = rows["blind", 0.01]
    assert found["output_compression"] > 3.5
    assert found["error"] > 0.5
    assert found["nats_below_best"] > 0.5
    for bucket in found["by_position"]:
        assert bucket["low"] <= bucket["error"] <= bucket["high"]
        assert bucket["texts_with_errors"] == 3


@pytest.mark.slow
def test_compression_is_told_where_slots_are_shared(rows):
    assert {way for way, row in rows.items() if "output_compression" in row} == {("blind", 0.01), ("blind", 1.0)}
    assert rows["blind", 1.0]["output_compression"] == 1


def test_the_command_line_writes_report_and_picture(model, tmp_path, monkeypatch, capsys):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"The {word} said"}) + "\n" for word in ("cat", "dog")))
    command = f"--model {model} --modes checked --confidence 0.01 --new-tokens 8 --prompts {prompts} --batch-size 2"
    outputs = ["--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png")]
    monkeypatch.setattr("sys.argv", ["eval.drift", *command.split(), *outputs])
    with pytest.raises(SystemExit) as end:
        run_program(Settings, main)
    assert end.value.code in (0, None)
    assert "By position in the output" in capsys.readouterr().out
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["command"].startswith("python -m eval.drift --model")
    assert {"device", "versions", "commit", "settings", "rounding"} <= report.keys()
    assert [(row["mode"], row["texts"]) for row in report["rows"]] == [("ar", 2), ("checked", 2)]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modes": ("magic",)}, "smash_mode must be one of blind, exact, checked; got 'magic'"),
        ({"modes": ()}, "modes must name at least one; got none"),
        ({"confidence": ()}, "confidence must name at least one; got none"),
        ({"confidence": (0.5, 1.5)}, "confidence must be over 0 and at most 1; got 1.5"),
        ({"micro_steps": 9}, "micro_steps must be at most 4, what the modules were trained for; got 9"),
        ({"new_tokens": 0}, "new_tokens must be at least 1; got 0"),
        ({"new_tokens": 250}, "256"),
        ({"num_prompts": 0}, "num_prompts must be at least 1; got 0"),
        ({"prompt_tokens": 2}, "prompt_tokens must be at least 3; got 2"),
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        ({"chat": True}, "chat goes with a file of prompts"),
        ({"modules": "nowhere"}, "nowhere has no HAMburger modules: smasher.json is missing"),
        ({"model": "no-such-model"}, "no-such-model"),
        ({"prompts": Path("missing.jsonl")}, "missing.jsonl"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_written(model, tmp_path, changes, message):
    settings = Settings(**({"model": model, "json": tmp_path / "a.json", "new_tokens": 8} | changes))
    with pytest.raises((ValueError, OSError), match=message):
        main(settings)
    assert not list(tmp_path.iterdir())


def test_fewer_prompts_than_asked_for_are_refused(model, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "The cat"}\n')
    with pytest.raises(ValueError, match="num_prompts must be at most 1, the prompts of the file; got 2"):
        measure(Settings(model=model, prompts=prompts, num_prompts=2, new_tokens=8))


def test_outputs_that_exist_or_are_the_same_are_refused(model, tmp_path):
    out = tmp_path / "a.json"
    with pytest.raises(ValueError, match="output files must differ"):
        main(Settings(model=model, json=out, plot=out))
    out.write_text("mine")
    with pytest.raises(FileExistsError, match="output file exists"):
        main(Settings(model=model, json=out))
    assert out.read_text() == "mine"
