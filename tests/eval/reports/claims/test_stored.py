import hashlib
import json
import subprocess

import pytest

from eval.reports.claims.stored import adopted, matching, read_report, read_reports, unused
from eval.reports.report import heading
from tests.eval.reports.claims.reports import report, speed_row


def git(folder, *arguments):
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A repository with a program and a file that it does not import."""
    root = tmp_path / "project"
    (root / "eval").mkdir(parents=True)
    (root / "eval" / "speed.py").write_text("a = 1\n")
    (root / "eval" / "other.py").write_text("")
    git(tmp_path, "init", "project")
    git(root, "add", ".")
    git(root, "commit", "-m", "first")
    return root


def written(path, content):
    path.write_text(json.dumps(content))
    return path


def test_a_row_has_the_options_of_the_run_and_its_own_settings_beside_its_figures():
    made = report(rows=[speed_row(), {"method": "ar", "settings": {"confidence": 0.5}}], settings={"tree": "auto"})
    first, second = made.rows
    assert (first["repeats"], first["method"], first["report"]) == (3, "ar", "speed")
    assert "tree" not in first
    assert second["confidence"] == 0.5


def test_a_report_tells_its_device_commit_size_and_seed_in_words():
    made = report(rows=[speed_row()])
    assert (made.program, made.device, made.commit) == ("eval.speed", "2 cores of Some CPU", "`0123456`")
    assert (made.size, made.seed) == ("2 prompts, 8 tokens each, 3 repeats", "greedy")
    dirty = report(commit={"hash": "a" * 40, "dirty": True})
    assert dirty.commit == "`aaaaaaa`, dirty (files differed from the commit)"
    assert report(commit=None).commit == "no commit"
    warm = report(program="eval.acceptance", settings={"temperatures": [0.8], "seed": 3}, questions=7)
    assert (warm.size, warm.seed) == ("7 questions, 8 tokens each at most", "seed 3")
    rows = [{"temperature": 0.0}, {"temperature": 0.25}]
    study = report(program="eval.acceptance", rows=rows, settings={"temperatures": [], "seed": 3}, questions=7)
    assert study.seed == "seed 3"
    assert report(program="eval.acceptance", rows=rows[:1], settings={"temperatures": []}).seed == "greedy"
    tasks = [{"prompts": [3, 4]}, {"prompts": [5]}]
    by_task = report(program="eval.by_task", tasks=tasks)
    assert by_task.size == "3 prompts of 2 tasks, 8 tokens each at most, repeats: 3"
    accelerator = report(device={"platform": "gpu", "kind": "H200", "count": 2})
    assert accelerator.device == "2 × H200"


def test_every_report_that_eval_writes_can_be_read(tmp_path):
    found = read_report(written(tmp_path / "a.json", heading("eval.speed", [], {"repeats": 1}) | {"rows": []}))
    assert found.name == "a"
    assert found.changed() == []


@pytest.mark.parametrize(
    ("text", "said"), [("{", "JSON"), ("[]", "lacks command"), ('{"command": ""}', "lacks device")]
)
def test_what_is_no_report_is_refused_by_name(tmp_path, text, said):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=f"a.json must be.*{said}"):
        read_reports(tmp_path)


def test_reports_are_found_by_name_and_pattern_in_the_patterns_order():
    reports = {name: report(name) for name in ("a-b1", "a-b1-x", "a-b8")}
    assert [r.name for r in matching(reports, ("a-b8", "a-b1*", "none"))] == ["a-b8", "a-b1", "a-b1-x"]
    assert unused(reports, ["a-b1"]) == ["a-b1-x", "a-b8"]


def test_a_report_whose_code_has_changed_tells_the_files(tmp_path):
    (tmp_path / "a.py").write_text("a = 1\n")
    digest = hashlib.sha256(b"a = 1\n").hexdigest()
    assert report(code={"a.py": digest}).changed(tmp_path) == []
    assert report(code={"a.py": digest, "b.py": digest}).changed(tmp_path) == ["b.py"]
    assert report().changed(tmp_path) is None


def test_an_older_report_is_given_the_code_of_its_commit_and_loses_its_paths(tmp_path, repository):
    content = dict(report().content) | {"command": "python -m eval.speed --json /tmp/somewhere/out.json"}
    content["settings"] = {"json": "/tmp/somewhere/out.json"}
    content |= {"commit": {"hash": git(repository, "rev-parse", "HEAD"), "dirty": False}}
    (repository / "eval" / "speed.py").write_text("a = 2\n")
    found = adopted(written(tmp_path / "a.json", content), repository)
    assert found["code"] == {"eval/speed.py": hashlib.sha256(b"a = 1\n").hexdigest()}
    assert found["command"] == "python -m eval.speed --json out.json"
    assert found["settings"] == {"json": "out.json"}


def test_of_changed_files_and_of_an_unknown_commit_no_code_is_made_up(tmp_path, repository):
    dirty = dict(report().content) | {"commit": {"hash": git(repository, "rev-parse", "HEAD"), "dirty": True}}
    assert "code" not in adopted(written(tmp_path / "a.json", dirty), repository)
    with pytest.raises(ValueError, match="commit must be one of this repository"):
        adopted(written(tmp_path / "b.json", dict(report().content)), repository)
