"""Directories that appear whole or not at all."""

import errno
import os
import shutil
from collections import namedtuple

import pytest

from jax_smash.checkpoints.directory import check_new, new_directory

Usage = namedtuple("Usage", "total used free")


def names(path):
    return sorted(p.name for p in path.iterdir())


def test_a_directory_appears_when_it_is_complete(tmp_path):
    with new_directory(tmp_path / "a" / "b", 10) as work:
        (work / "file").write_text("text")
        assert not (tmp_path / "a" / "b").exists()
    assert (tmp_path / "a" / "b" / "file").read_text() == "text"
    assert names(tmp_path / "a") == ["b"]


def test_what_a_killed_run_left_stands_in_nobodys_way(tmp_path):
    left = tmp_path / f".out.{os.getpid()}.part"  # Of a process with the same number, as in containers.
    left.mkdir()
    with new_directory(tmp_path / "out", 0) as work:
        (work / "file").touch()
    assert names(tmp_path / "out") == ["file"]
    assert names(tmp_path) == [left.name, "out"]


def test_an_empty_directory_may_be_filled(tmp_path):
    (tmp_path / "out").mkdir()
    with new_directory(tmp_path / "out", 0) as work:
        (work / "file").touch()
    assert names(tmp_path / "out") == ["file"]


def test_a_fault_leaves_nothing_behind(tmp_path):
    (tmp_path / "out").mkdir()

    def stumble():
        with new_directory(tmp_path / "out", 0) as work:
            (work / "file").touch()
            raise KeyError

    with pytest.raises(KeyError):
        stumble()
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == []


def test_what_is_there_is_never_replaced(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(FileExistsError, match=r"full must be a new or empty directory; it has files in it"):
        check_new(tmp_path / "full")
    with pytest.raises(FileExistsError, match=r"file must be a new or empty directory; it is a file"):
        check_new(tmp_path / "full" / "file")
    assert (tmp_path / "full" / "file").read_text() == "mine"


def test_what_appears_meanwhile_is_not_replaced_either(tmp_path):
    def fill():
        with new_directory(tmp_path / "out", 0) as work:
            (work / "file").touch()
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "file").write_text("mine")

    with pytest.raises(OSError, match=r"out"):
        fill()
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "file").read_text() == "mine"


def test_room_is_asked_for_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100, 1, 99))
    with pytest.raises(OSError, match=r"no room to save: 100 bytes are needed, 99 are free") as caught:
        new_directory(tmp_path / "out", 100).__enter__()
    assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == []
    with new_directory(tmp_path / "out", 99):
        pass


def test_a_full_disk_is_said_to_be_one(tmp_path):
    with pytest.raises(OSError, match=r"no room to save: No space left") as caught, new_directory(tmp_path / "out", 0):
        raise OSError(errno.ENOSPC, "while writing")
    assert caught.value.filename == str(tmp_path / "out")
    assert names(tmp_path) == []


def test_a_full_disk_is_said_to_be_one_by_what_a_library_says(tmp_path):
    """The tokenizers library raises nothing more than `Exception`."""
    with pytest.raises(OSError, match="no room to save") as caught, new_directory(tmp_path / "out", 0):
        raise Exception("No space left on device (os error 28)")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(Exception, match="os error 2"), new_directory(tmp_path / "out", 0):
        raise Exception("No such file or directory (os error 2)")
    assert not list(tmp_path.iterdir())
