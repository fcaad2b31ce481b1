import json

import pytest

from eval.reports.report import heading, write_json
from eval.reports.told_paths import MACHINE_PATH, ROOT, told, told_arguments, told_path


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder of data with a file, which the environment names."""
    folder = tmp_path / "data"
    (folder / "sets").mkdir(parents=True)
    (folder / "sets" / "a.jsonl").write_text("")
    monkeypatch.setenv("DATA", str(folder))
    return folder


def test_a_path_of_data_begins_with_data(data, tmp_path):
    assert told_path(f"{data}/sets/a.jsonl") == "DATA/sets/a.jsonl"
    assert told_path(f"piqa={data}/sets/a.jsonl") == "piqa=DATA/sets/a.jsonl"
    assert told_path(f"{data}/sets/a.jsonl,{tmp_path}/b.jsonl") == "DATA/sets/a.jsonl,DATA/b.jsonl"


def test_without_the_folder_of_data_a_file_keeps_its_name_alone(data, monkeypatch):
    monkeypatch.delenv("DATA")
    assert told_path(f"{data}/sets/a.jsonl") == "DATA/a.jsonl"


def test_models_and_outputs_are_told_by_name(data, tmp_path):
    model = data / "smollm2-135m"
    model.mkdir()
    (model / "config.json").write_text("{}")
    words = ["--model", str(model), "--spec-bench", f"{data}/sets/a.jsonl", "--json", f"{tmp_path}/out.json"]
    expected = ["--model", "smollm2-135m", "--spec-bench", "DATA/sets/a.jsonl", "--json", "out.json"]
    assert told_arguments(words) == expected
    joined = [f"{a}={b}" for a, b in zip(words[::2], words[1::2], strict=True)]
    assert told_arguments(joined) == [f"{a}={b}" for a, b in zip(expected[::2], expected[1::2], strict=True)]


def test_what_is_no_path_outside_the_project_stays_as_it_is():
    for word in ("tiny", "owner/name", "0,0.25", "--chat", "fsdp=4,tp=2", "eval/prompts/stories.jsonl", "/", "/x"):
        assert told_path(word) == word
    assert told_path(str(ROOT / "eval/prompts/stories.jsonl")) == "eval/prompts/stories.jsonl"


def test_a_report_holds_no_path_of_this_machine_wherever_it_stands(tmp_path):
    model = tmp_path / "base"
    model.mkdir()
    (model / "config.json").write_text("{}")
    report = heading("eval.quality", ["--model", str(model)], {"model": str(model), "modules": (str(model),)})
    rows = [{"model": str(model), "note": f"{model} has no tokenizer: see {tmp_path}/x.jsonl."}]
    write_json(tmp_path / "out.json", report | {"rows": rows})
    text = (tmp_path / "out.json").read_text()
    # The control: the report as it was had the path.
    assert MACHINE_PATH.search(json.dumps(rows)) or not str(tmp_path).startswith(("/tmp", "/var", "/home", "/private"))
    assert str(tmp_path) not in text
    found = json.loads(text)
    assert found["command"] == "python -m eval.quality --model base"
    assert found["settings"] == {"model": "base", "modules": ["base"]}
    assert found["rows"][0]["model"] == "base"


def test_figures_and_words_with_strokes_stay():
    report = {"tokens/s": 1.5, "n": 3, "ok": True, "none": None, "text": "3/4 of data/sets, https://example.com/home/a"}
    assert told(report) == report
