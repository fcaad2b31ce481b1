import json
import subprocess
from pathlib import Path

import pytest

from eval.reports.report import (
    check_folder,
    check_output,
    check_outputs,
    commit,
    describe_device,
    heading,
    print_table,
    versions,
    write_json,
)


def git(folder, *arguments):
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_a_folder_without_a_repository_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit(tmp_path) is None


def test_a_changed_file_makes_the_commit_dirty(tmp_path):
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    clean = commit(tmp_path)
    assert clean is not None
    assert len(clean["hash"]) == 40
    assert not clean["dirty"]
    (tmp_path / "file").write_text("new")
    assert commit(tmp_path) == clean | {"dirty": True}


def test_the_heading_tells_what_a_reader_needs_to_repeat_the_run():
    found = heading("eval.speed", ["--model", "a b"], {"model": "a b"})
    assert found["command"] == "python -m eval.speed --model 'a b'"
    assert found["settings"] == {"model": "a b"}
    assert found["versions"].keys() >= {"python", "jax", "jaxlib", "flax", "transformers"}
    assert found["device"]["platform"] == "cpu"
    json.dumps(found)


def test_a_package_that_was_used_tells_its_version():
    assert versions("pytest")["pytest"] == pytest.__version__


def test_the_host_has_cores():
    assert describe_device()["host_cores"] >= 1


def test_a_report_is_written_whole(tmp_path):
    write_json(tmp_path / "out.json", {"a": 1.5, "b": ["ü"]})
    assert json.loads((tmp_path / "out.json").read_text()) == {"a": 1.5, "b": ["ü"]}
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_a_report_with_a_number_that_is_none_leaves_the_old_file(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    assert path.read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    (tmp_path / ".out.json.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        write_json(path, {"a": 1})
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_an_output_file_that_exists_is_refused_unless_it_may_be_replaced(tmp_path):
    path = tmp_path / "out.json"
    check_output(path, overwrite=False)
    path.write_text("{}")
    check_output(path, overwrite=True)
    with pytest.raises(FileExistsError, match="output file exists"):
        check_output(path, overwrite=False)


def test_an_output_file_in_no_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        check_output(tmp_path / "missing" / "out.json", overwrite=False)


def test_pictures_without_matplotlib_are_refused_before_any_work(tmp_path, monkeypatch):
    check_folder(tmp_path / "out", overwrite=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="--output needs matplotlib: pip install"):
        check_folder(tmp_path / "out", overwrite=False)
    with pytest.raises(ImportError, match="--plot needs matplotlib: pip install"):
        check_outputs(plot=tmp_path / "a.png", overwrite=False)
    check_folder(None, overwrite=False)


def test_a_table_shows_three_digits_and_a_dash_for_nothing(capsys):
    print_table("Title", [{"name": "a", "speed": 1234.567, "share": 0.12345, "none": None}], ("speed", "share", "none"))
    shown = capsys.readouterr().out
    assert "1,235" in shown
    assert "0.123" in shown
    assert "–" in shown
