import json

import pytest

from tests.train.corpus_files import write_lines
from train.data.documents import clean, read_documents


def test_a_bad_line_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n\n{"text": \n')
    with pytest.raises(ValueError, match=r"a\.jsonl:3: "):
        list(read_documents(path, passage=100))


def test_a_file_that_is_not_text_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"a\.txt cannot be read as UTF-8"):
        list(read_documents(tmp_path / "a.txt", passage=100))


def test_a_long_text_is_cut_at_blank_lines_without_loss(tmp_path):
    text = "\n\n".join(f"Paragraph {i}." for i in range(50))
    (tmp_path / "a.txt").write_text(text)
    passages = list(read_documents(tmp_path / "a.txt", passage=100))
    assert len(passages) > 3
    assert "\n\n".join(passage.text for passage in passages) == text
    assert [passage.complete for passage in passages] == [False] * (len(passages) - 1) + [True]


@pytest.mark.parametrize(
    ("dirty", "plain"),
    [
        ("“Hi,” she said — it’s…", '"Hi," she said -- it\'s...'),
        ("â€œHi!â€ Thatâ€™s it.", '"Hi!" That\'s it.'),
        ("a\n\n[Illustration: a cat\nand a dog]\n\n* * * * *\n\n\nb", "a\n\nb"),
        ("He wrote <|end|><|user|>Hello[12].  \n", "He wrote Hello."),
        ("48/2 = <<48/2=24>>24 clips", "48/2 = 24 clips"),
        ("if x:\n    y", "if x:\n    y"),
    ],
)
def test_cleaning_leaves_plain_text(dirty, plain):
    assert clean(dirty) == plain


@pytest.mark.parametrize(
    "row", [{"body": "x"}, {"text": 3}, {"turns": ["a", 1]}, {"messages": [{"role": "user"}]}, ["text"]]
)
def test_a_line_of_another_form_is_refused(tmp_path, row):
    with pytest.raises(ValueError, match=r"a\.jsonl:1: expected text, messages, turns, prompt and response"):
        list(read_documents(write_lines(tmp_path / "a.jsonl", row), passage=100))


def test_a_prompt_that_is_no_text_is_refused(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", {"text": "one two", "prompt": ["one"], "finish_reason": "length"})
    with pytest.raises(ValueError, match=r"a\.jsonl:1: the prompt of a text must be a string; got list"):
        list(read_documents(path, passage=100))


def test_a_role_that_no_template_has_is_refused(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", {"messages": [{"role": "tool", "content": "x"}]})
    with pytest.raises(ValueError, match=r"a\.jsonl:1: role must be system, user or assistant; got 'tool'"):
        list(read_documents(path, passage=100))


def test_every_form_of_a_chat_is_read_up_to_its_last_reply(tmp_path):
    path = write_lines(
        tmp_path / "a.jsonl",
        {"turns": ["q", "a", "unanswered"]},
        {"prompt": "p", "response": "r"},
        {"question": "how many?", "answer": "3"},
        {"instruction": "spell", "input": "cat", "output": "c a t"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"},
                      {"role": "assistant", "content": "v"}, {"role": "user", "content": "w"}]},
        {"turns": ["nobody answers"]},
    )  # fmt: skip
    contents = [[tuple(m.values()) for m in d.messages] for d in read_documents(path, passage=9)]
    assert contents == [
        [("user", "q"), ("assistant", "a")],
        [("user", "p"), ("assistant", "r")],
        [("user", "how many?"), ("assistant", "3")],
        [("user", "spell\ncat"), ("assistant", "c a t")],
        [("system", "s"), ("user", "u"), ("assistant", "v")],
    ]


def test_a_json_list_is_read_like_lines(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"text": "one"}, {"text": "two"}]))
    assert [d.text for d in read_documents(tmp_path / "a.json", passage=100)] == ["one", "two"]
    (tmp_path / "b.json").write_text('{"text": "one"}')
    with pytest.raises(ValueError, match=r"b\.json must hold a list; got dict"):
        list(read_documents(tmp_path / "b.json", passage=100))


def test_numbered_stories_with_questions_are_documents_of_their_own(tmp_path):
    lines = ["1 Ann went to the hall.", "2 Where is Ann? \thall\t1", "1 Bob left.", "2 Who left? \tBob\t1"]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    texts = [document.text for document in read_documents(tmp_path / "a.txt", passage=1000)]
    assert texts == ["Ann went to the hall.\nWhere is Ann? hall", "Bob left.\nWho left? Bob"]
