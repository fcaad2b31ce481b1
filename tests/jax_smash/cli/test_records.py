"""The output file: whole or not there."""

import io
import json
import os
import resource
import sys
from pathlib import Path

import pytest

from jax_smash.cli.errors import UsageError
from jax_smash.cli.records import RecordFile


def write(path: Path, *lines: dict, error: BaseException | None = None, overwrite: bool = False) -> None:
    """Writes lines, then ends well or with an error."""
    with RecordFile(path, overwrite=overwrite) as records:
        for line in lines:
            records.write(line)
        if error is not None:
            raise error


def test_lines_are_kept_beside_the_file_until_all_are_there(tmp_path):
    path, partial = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    with RecordFile(path) as records:
        assert not partial.exists()
        records.write({"text": "Zwölf\n"})
        assert partial.read_text(encoding="utf-8") == '{"text": "Zwölf\\n"}\n'
        records.write({"text": "b"})
        assert not path.exists()
    assert [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()] == ["Zwölf\n", "b"]
    assert os.listdir(tmp_path) == ["out.jsonl"]


def test_numbers_that_json_lacks_become_null(tmp_path):
    with RecordFile(tmp_path / "out.jsonl") as records:
        records.write({"a": [{"b": float("-inf")}], "c": float("nan"), "d": 1.5})
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {"a": [{"b": None}], "c": None, "d": 1.5}


def test_an_error_keeps_the_lines_and_says_where_they_are(tmp_path):
    path = tmp_path / "out.jsonl"
    with pytest.raises(ValueError, match="bad") as caught:
        write(path, {"n": 1}, error=ValueError("bad"))
    assert caught.value.__notes__ == [f"1 finished completions are in {path}.partial; --resume continues it"]
    assert not path.exists()
    assert (tmp_path / "out.jsonl.partial").read_text() == '{"n": 1}\n'


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("written", [0, 5, 9])
def test_an_interrupt_within_a_write_keeps_whole_lines_alone_and_counts_them(tmp_path, monkeypatch, before, written):
    line = b'{"n": 1}\n'

    class Interrupted(io.FileIO):
        """Ends within the last line, after some of its bytes: what a signal's handler does at that moment."""

        def write(self, data):
            if self.tell() < before * len(line):
                return super().write(data)
            super().write(data[:written])
            raise KeyboardInterrupt

    monkeypatch.setattr(
        "jax_smash.cli.records.open",
        lambda path, mode, **how: (Interrupted if how else open)(path, mode),
        raising=False,
    )
    with pytest.raises(KeyboardInterrupt) as caught:
        write(tmp_path / "out.jsonl", *[{"n": 1}] * (before + 1))
    whole = before + (written == len(line))
    kept = [p.read_bytes() for p in tmp_path.iterdir()]
    assert kept == [line * whole] * (whole > 0)
    told = [f"{whole} finished completions are in {tmp_path / 'out.jsonl.partial'}; --resume continues it"]
    assert getattr(caught.value, "__notes__", []) == told * (whole > 0)


def test_an_error_before_the_first_line_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="bad") as caught:
        write(tmp_path / "out.jsonl", error=ValueError("bad"))
    assert not hasattr(caught.value, "__notes__")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.partial"])
def test_a_file_that_exists_is_refused_or_replaced_as_asked(tmp_path, name):
    (tmp_path / name).write_text("old")
    with pytest.raises(UsageError, match=rf"{name} exists; (--resume continues it, )?--overwrite permits"):
        RecordFile(tmp_path / "out.jsonl")
    assert (tmp_path / name).read_text() == "old"
    with RecordFile(tmp_path / "out.jsonl", overwrite=True) as records:
        records.write({"n": 1})
    assert (tmp_path / "out.jsonl").read_text() == '{"n": 1}\n'
    assert os.listdir(tmp_path) == ["out.jsonl"]


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path):
    path = tmp_path / "out.jsonl"
    records = RecordFile(path)
    records.write({"n": 1})
    path.write_text("another program's")
    with pytest.raises(UsageError, match="exists"):
        records.__exit__(None, None, None)
    assert path.read_text() == "another program's"
    assert (tmp_path / "out.jsonl.partial").read_text() == '{"n": 1}\n'


def test_an_error_while_replacing_leaves_the_old_file(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        write(path, {"n": 1}, error=KeyboardInterrupt(), overwrite=True)
    assert path.read_text() == "old"


def test_of_two_programs_with_one_name_the_second_is_refused(tmp_path):
    first, second = (RecordFile(tmp_path / "out.jsonl") for _ in range(2))
    with first:
        first.write({"n": 1})
        with pytest.raises(FileExistsError), second:
            second.write({"n": 2})
        first.write({"n": 3})
    assert (tmp_path / "out.jsonl").read_text() == '{"n": 1}\n{"n": 3}\n'


def test_what_is_no_regular_file_or_has_no_directory_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"must be a regular file; /dev/null is none"):
        RecordFile(Path("/dev/null"), overwrite=True)
    with pytest.raises(UsageError, match="regular file"):
        RecordFile(tmp_path, overwrite=True)
    with pytest.raises(UsageError, match=r"needs a directory .*absent; there is none"):
        RecordFile(tmp_path / "absent" / "out.jsonl")


def test_a_full_disk_leaves_whole_lines_and_names_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # A module first imported below would be cached cut short.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    path, record = tmp_path / "out.jsonl", {"text": "x" * 40}
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write(path, record, record, record)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == f"{path}.partial"
    assert caught.value.__notes__ == [f"1 finished completions are in {path}.partial; --resume continues it"]
    assert [json.loads(line) for line in (tmp_path / "out.jsonl.partial").read_text().splitlines()] == [record]
