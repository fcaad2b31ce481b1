import json

import pytest

from tests.train.corpus_files import write_lines
from train.data.questions import read_questions


def user(*texts):
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


ROWS = [
    ("Once upon", "Once upon"),
    ({"prompt": " as it — stands ", "response": "r"}, " as it — stands "),
    ({"prompt": [3, 4]}, [3, 4]),
    ({"prompt": user("a")}, user("a")),
    ({"messages": user("a", "b", "c", "d")}, user("a", "b", "c")),
    ({"messages": user("a", "b", "c")}, user("a", "b", "c")),
    ({"messages": [{"role": "system", "content": "s"}, *user("a")]}, [{"role": "system", "content": "s"}, *user("a")]),
    ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, user("a")),
    ({"turns": ["a", "b"]}, user("a")),
    ({"turns": ["a", "b", "c"]}, user("a", "b", "c")),
    ({"question_id": 81, "category": "writing", "turns": ["a", "and then?"]}, user("a")),
    ({"question": "how many?", "answer": "3"}, user("how many?")),
    ({"instruction": "What does arr[0] give?", "output": "o"}, user("What does arr[0] give?")),
    ({"instruction": "spell", "input": "cat", "output": "c a t"}, user("spell\ncat")),
    ({"instruction": "sum up", "context": "a text", "response": "r"}, user("sum up\na text")),
    ({"name": "n", "instruction": "rank", "instances": [{"input": "b a", "output": "a b"}]}, user("rank\nb a")),
    ({"name": "n", "instruction": "rank", "instances": [{"input": "", "output": "a b"}]}, user("rank")),
]


@pytest.mark.parametrize(("row", "asked"), ROWS)
def test_every_layout_asks_what_stands_there(tmp_path, row, asked):
    (tmp_path / "list.json").write_text(json.dumps([row]), encoding="utf-8-sig")
    (tmp_path / "lines.jsonl").write_text(json.dumps(row) + "\n\n", encoding="utf-8-sig")
    assert read_questions(tmp_path / "list.json") == read_questions(tmp_path / "lines.jsonl") == [asked]


def test_each_row_may_have_a_layout_of_its_own_and_none_is_lost(tmp_path):
    write_lines(tmp_path / "b.jsonl", *(row for row, _ in ROWS))
    (tmp_path / "a.json").write_text(json.dumps([row for row, _ in ROWS[:2]]))
    (tmp_path / "notes.txt").write_text("not read")
    expected = [asked for _, asked in ROWS]
    assert read_questions(tmp_path) == [*expected[:2], *expected]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a document"}, r"expected a text, \{.prompt.*got \['text'\]"),
        ({"turns": ["a", 1]}, "expected a text"),
        (3, "expected a text.*got int"),
        ("", "prompt is empty"),
        ({"messages": user("a")[:0]}, "a chat must have a message before the reply"),
        ({"messages": [{"role": "assistant", "content": "b"}]}, "a chat must have a message before the reply"),
        ({"messages": [{"role": "user"}]}, "each message must have role and content, both texts; got"),
        ({"conversations": [{"from": "tool", "value": "x"}]}, "from must be one of system, user.*got 'tool'"),
        ({"instruction": "i", "input": ["x"]}, "what an instruction is about must be a text; got list"),
    ],
)
def test_a_row_that_asks_nothing_is_named(tmp_path, row, message):
    write_lines(tmp_path / "a.jsonl", {"prompt": "fine"}, row)
    with pytest.raises(ValueError, match=rf"a\.jsonl, line 2: {message}"):
        read_questions(tmp_path / "a.jsonl")
    (tmp_path / "a.json").write_text(json.dumps([{"prompt": "fine"}, row]))
    with pytest.raises(ValueError, match=rf"a\.json, element 2: {message}"):
        read_questions(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"prompt": \n', r"a\.jsonl, line 1: "),
        ("a.jsonl", b"\n", r"a\.jsonl must hold at least one prompt; got none"),
        ("a.json", b"[]", r"a\.json must hold at least one prompt; got none"),
        ("a.json", b"{}", r"a\.json must hold a list; got dict"),
        ("a.json", b"[", r"a\.json is not JSON"),
        ("a.jsonl", b"\xff\xfe", r"a\.jsonl is not UTF-8: byte 0xff at 0"),
    ],
)
def test_a_file_that_holds_no_rows_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_questions(tmp_path / name)


def test_a_folder_without_prompts_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"must hold \.jsonl or \.json files of prompts; got none"):
        read_questions(tmp_path)
