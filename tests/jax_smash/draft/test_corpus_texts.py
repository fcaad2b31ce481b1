import pytest

from jax_smash.draft import corpus_texts
from jax_smash.draft.corpus_texts import read_texts


def test_a_text_file_is_one_text_and_a_jsonl_file_one_a_line(tmp_path):
    (tmp_path / "b.txt").write_text("two\nlines\n", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text('{"text": "first\u2028one", "id": 1}\n\n"second"\n', encoding="utf-8")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "c.md").write_text("third", encoding="utf-8")
    (tmp_path / "image.png").write_bytes(b"\xff")
    assert read_texts(tmp_path / "b.txt") == ["two\nlines\n"]
    assert read_texts(tmp_path) == ["first\u2028one", "second", "two\nlines\n", "third"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b" \n", "has no text"),
        ("a.jsonl", b"", "has no text"),
        ("a.txt", b"ab\xff", "must be UTF-8 text: byte 2 is not"),
        ("a.jsonl", b'{"text": "x"}\n{"text"\n', "a.jsonl:2 is not JSON"),
        ("a.jsonl", b'{"prompt": "x"}\n', 'a.jsonl:1 must be a string, or an object with a string "text"'),
        ("a.jsonl", b"3\n", "a.jsonl:1 must be a string"),
    ],
)
def test_a_bad_file_is_named(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        read_texts(tmp_path / name)


def test_a_place_without_files_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"has no \.txt, \.md, \.jsonl file"):
        read_texts(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_texts(tmp_path / "none")


def test_a_corpus_that_is_too_large_is_refused_unread(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes(b"\xff" * 11)
    monkeypatch.setattr(corpus_texts, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="must have at most 10 bytes to be a corpus; got 11"):
        read_texts(tmp_path)
