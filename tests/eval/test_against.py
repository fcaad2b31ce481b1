"""Two versions of the project, measured in turn."""

import dataclasses
import json
import subprocess
import sys

import pytest

from eval.against import Settings, _asked, files_of, main
from eval.reports.report import ROOT, commit

pytestmark = pytest.mark.skipif(commit() is None, reason="needs the project's repository")
FEW = Settings(commit="HEAD", model="tiny", max_new_tokens=6, pairs=2, settle_seconds=0.0)


@pytest.mark.slow
def test_a_commit_is_measured_beside_this_version(tmp_path):
    path = tmp_path / "against.json"
    settings = dataclasses.replace(FEW, methods=("ar", "lookup"), tree="chain-2", batch_sizes=(1, 2), json=path)
    main(settings, ["HEAD"])
    report = json.loads(path.read_text())
    assert [(row["method"], row["batch_size"]) for row in report["rows"]] == [
        (m, b) for m in ("ar", "lookup") for b in (1, 2)
    ]
    for row in report["rows"]:
        assert row["pairs"] == len(row["seconds"]["before"]) == len(row["seconds"]["now"]) == 2
        assert row["same_text"]
        assert 0 < row["low"] <= row["high"]
    assert report["against"] == commit()["hash"]
    assert report["pooled"]["low"] <= report["pooled"]["high"]


def test_the_files_are_those_of_the_commit():
    first = subprocess.run(
        ["git", "-C", str(ROOT), "rev-list", "-n", "1", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    with files_of("HEAD") as (folder, digest):
        assert digest == first
        assert (folder / "jax_smash" / "__init__.py").is_file()
        assert not (folder / ".git").exists()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"commit": "no-such-commit"}, "commit must be one of this repository; got 'no-such-commit'"),
        ({"model": None}, "give a model, or a shape with --random-init"),
        ({"pairs": 1}, "pairs must be at least 2; got 1"),
        ({"batch_sizes": (0,)}, "tokens and rows must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        main(dataclasses.replace(FEW, **changes), ["HEAD"])


def test_what_lies_in_the_callers_folder_is_found_from_any_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("model", "auto"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tree.json").write_text("[[0]]")
    asked = _asked(dataclasses.replace(FEW, model="model", tree="tree.json"))
    assert (asked["model"], asked["tree"]) == (str(tmp_path / "model"), str(tmp_path / "tree.json"))
    assert asked["random_init"] is None
    shape = _asked(dataclasses.replace(FEW, model=None, random_init="./model"))
    assert (shape["model"], shape["random_init"]) == (None, str(tmp_path / "model"))
    named = _asked(dataclasses.replace(FEW, model="smollm2", tree="auto"))
    assert (named["model"], named["tree"]) == ("smollm2", "auto")


@pytest.mark.slow
def test_a_side_that_fails_says_why():
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "eval.against",
            "HEAD",
            "--model",
            "tiny",
            "--methods",
            "no-such-method",
            "--pairs",
            "2",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 1
    assert "no-such-method" in done.stderr
    assert "ended: see above" in done.stderr.splitlines()[-1]
