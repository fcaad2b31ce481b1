import json
import sys

import pytest

from eval.tasks.records import Record, read_records


def test_lines_keep_their_numbers(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n{"a": "\xc3\xbc"}\n')
    assert read_records(path) == [Record(f"{path}, line 1", {"a": 1}), Record(f"{path}, line 3", {"a": "ü"})]


def test_a_json_list_is_read_too(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"a": 1}, {"a": 2}]))
    assert [r.fields["a"] for r in read_records(path)] == [1, 2]
    assert read_records(path)[1].where == f"{path}, entry 2"


def test_labels_beside_a_file_are_joined_to_it(tmp_path):
    path = tmp_path / "valid.jsonl"
    path.write_text('{"a": 1}\n{"a": 2, "label": "9"}\n')
    (tmp_path / "valid-labels.lst").write_text("1\n0\n")
    assert [r.fields["label"] for r in read_records(path)] == ["1", "9"]
    (tmp_path / "valid-labels.lst").write_text("1\n")
    with pytest.raises(ValueError, match="a label for each of 2 entries; got 1"):
        read_records(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a": ', "a.jsonl, line 2: not JSON"),
        (b'{"a": 1}\n[1]\n', "a.jsonl, line 2: expected an object; got list"),
        (b'{"a": 1}\n\xff\n', "a.jsonl, line 2: not UTF-8: byte 0xff at 0"),
        (b"\n", "must hold at least one entry; got none"),
    ],
)
def test_a_bad_line_is_named(tmp_path, content, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_records(path)


@pytest.mark.parametrize("source", ["missing.jsonl", "folder/missing.json", "missing", "a/b/c"])
def test_a_missing_file_is_refused(source):
    with pytest.raises(FileNotFoundError, match="data file does not exist"):
        read_records(source)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is a folder"):
        read_records(tmp_path)


def test_the_hub_without_its_package_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"owner/name is no file.*pip install datasets"):
        read_records("owner/name")


@pytest.mark.parametrize("value", [None, 3, ["a"]])
def test_a_field_that_is_no_text_is_named(value):
    with pytest.raises(ValueError, match='here: expected a text "a"; got'):
        Record("here", {"a": value}).text("a")


def test_a_field_that_is_missing_is_named_with_those_there_are():
    with pytest.raises(ValueError, match="expected a text \"a\"; got the fields 'b', 'c'"):
        Record("here", {"b": 1, "c": 2}).text("a")


def test_half_a_character_is_no_text():
    with pytest.raises(ValueError, match="here: text is not Unicode"):
        Record("here", {"a": "x\ud800"}).text("a")


@pytest.mark.parametrize("value", [-1, 2, "two", None, 0.5 + 2])
def test_a_number_out_of_range_is_refused(value):
    with pytest.raises(ValueError, match='here: expected a number "a" from 0 … 1; got'):
        Record("here", {"a": value}).index("a", 2)


def test_a_number_may_be_written_and_count_from_one():
    assert Record("here", {"a": "2"}).index("a", 2, first=1) == 1


@pytest.mark.parametrize("value", [["a"], ["a", " "], ["a", 3], "ab"])
def test_a_list_of_other_than_texts_is_refused(value):
    with pytest.raises(ValueError, match='here: expected a list of two or more texts "a"'):
        Record("here", {"a": value}).texts("a")
