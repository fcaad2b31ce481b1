import dataclasses
import errno
import json
import os

import pytest

from train.stages.recipe_lock import (
    LOCK,
    MADE,
    Entry,
    Lock,
    below,
    changes,
    combined,
    hash_files,
    only_call,
    read_lock,
    write_lock,
)

MADE_LOCK = Lock(
    "r", {"@data": {"a.txt": "1"}}, {"run": Entry("python", "2", {"@data": "3"}, MADE, ("c",), {".": "4"})}
)


@pytest.fixture
def folder(tmp_path):
    """Files in a folder and below, some of them hidden, and compiled programs."""
    for name in ("a.txt", "b/c.txt", ".hidden", ".git/x", "programs/cpu/jax-1.0-jaxlib-1.0/x"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(name)
    return tmp_path / "in"


def test_every_file_counts_but_hidden_ones_and_compiled_programs(folder):
    found = hash_files(folder)
    assert [*found] == ["a.txt", "b/c.txt"]
    assert hash_files(folder / "a.txt") == {".": found["a.txt"]}
    assert hash_files(folder / "absent") == {}


def test_links_are_followed(folder, tmp_path):
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "in").symlink_to(folder, target_is_directory=True)
    assert hash_files(tmp_path / "linked") == {f"in/{name}": sha for name, sha in hash_files(folder).items()}


def test_one_hash_tells_names_and_contents_apart(folder):
    before = hash_files(folder)
    assert combined(before) == combined(dict(reversed(before.items())))
    (folder / "a.txt").rename(folder / "d.txt")
    assert combined(hash_files(folder)) != combined(before)


def test_a_folder_below_has_its_own_files():
    hashes = {"model/a": "1", "model/b/c": "2", "models/a": "3", "x": "4"}
    assert below(hashes, "model") == {"a": "1", "b/c": "2"}
    assert below(hashes, "x") == {".": "4"}
    assert below(hashes, "") == hashes
    assert below(hashes, "y") == {}


def test_changes_are_named():
    before = dict.fromkeys("abcde", "1")
    assert changes(before, before) == ""
    assert changes(before, before | {"b": "2", "f": "1"}) == "f is new, b changed"
    assert changes(before, {}) == "a is gone, b is gone, c is gone and 2 more"
    assert changes({".": "1"}, {".": "2"}) == "it changed"


def test_a_lock_is_read_as_it_was_written(tmp_path):
    assert read_lock(tmp_path / "absent") is None
    write_lock(tmp_path, MADE_LOCK)
    assert read_lock(tmp_path) == MADE_LOCK
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_a_folder_of_something_else_is_refused(tmp_path):
    assert read_lock(tmp_path) is None
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(FileExistsError, match=r"is not a recipe's: it exists and has no recipe\.lock\.json"):
        read_lock(tmp_path)
    with pytest.raises(FileExistsError, match=r"thesis\.txt is not a recipe's"):
        read_lock(tmp_path / "thesis.txt")


@pytest.mark.parametrize("text", ["", "[]", '{"recipe": "r"}', '{"recipe": "r", "inputs": {}, "stages": {"a": {}}}'])
def test_a_damaged_lock_is_named(tmp_path, text):
    (tmp_path / LOCK).write_text(text)
    with pytest.raises(ValueError, match=r"recipe\.lock\.json is not a recipe's lock: "):
        read_lock(tmp_path)


def test_a_lock_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    write_lock(tmp_path, MADE_LOCK)

    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_lock(tmp_path, dataclasses.replace(MADE_LOCK, stages={}))
    assert caught.value.filename == str(tmp_path / LOCK)
    assert read_lock(tmp_path) == MADE_LOCK
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_one_call_works_in_a_folder_at_a_time(tmp_path):
    with only_call(tmp_path / "out") as held:
        os.write(held, b"stage 'run', process 7,")
        with (
            pytest.raises(ValueError, match="out is in use: stage 'run', process 7, runs"),
            only_call(tmp_path / "out"),
        ):
            pass
    with only_call(tmp_path / "out"):
        pass


def test_the_lock_is_plain_json(tmp_path):
    write_lock(tmp_path, MADE_LOCK)
    fields = json.loads((tmp_path / LOCK).read_text())
    assert fields["stages"]["run"]["outputs"] == {".": "4"}
