"""Reading a file of prompts."""

import json

import pytest

from jax_smash.serve.prompts import checked_text, read_prompts

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def test_text_tokens_and_messages_are_read_in_order(tmp_path):
    prompts = ["Once upon a time", [3, 1, 4, 1, 5], MESSAGES, "Zwölf — 十二", " "]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": p, "id": i}) for i, p in enumerate(prompts)))
    assert read_prompts(file) == prompts


def test_blank_lines_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n   \n{"prompt": "b"}\r\n')
    assert read_prompts(file) == ["a", "b"]


BAD_LINES = {
    b'{"prompt": "cut': "not JSON: Unterminated string starting at at column 12",
    b'{"prompt": "a"} {"prompt": "b"}': "not JSON: Extra data",
    b'["a"]': 'each line must be an object like {"prompt": "Once upon a time"}; got a list',
    b'"a"': 'each line must be an object like {"prompt": "Once upon a time"}; got "a"',
    b"Once upon a time": 'not JSON: Expecting value at column 1; each line must be an object like {"prompt"',
    b'{"text": "a", "n": 1}': "expected a field \"prompt\"; got 'text', 'n'",
    b"{}": 'expected a field "prompt"; got no field',
    b'{"prompt": null}': "prompt must be text, tokens or chat messages; got null",
    b'{"prompt": 7}': "prompt must be text, tokens or chat messages; got 7",
    b'{"prompt": {"role": "user"}}': "prompt must be text, tokens or chat messages; got an object",
    b'{"prompt": ""}': "prompt is empty",
    b'{"prompt": []}': "prompt is empty",
    b'{"prompt": [1, 2.5]}': "entry 1 of prompt must be a token (an integer) like all others; got 2.5",
    b'{"prompt": [1, true]}': "entry 1 of prompt must be a token (an integer) like all others; got true",
    b'{"prompt": [1, {"role": "user"}]}': "entry 1 of prompt must be a token (an integer) like all others",
    b'{"prompt": [{"role": "user", "content": "a"}, "b"]}': 'message 1 must be an object like the first; got "b"',
    b'{"prompt": [{"role": "user"}]}': "message 0 must have a text 'content'; got none",
    b'{"prompt": [{"role": 3, "content": "a"}]}': "message 0 must have a text 'role'; got 3",
    b'{"prompt": "\\ud800"}': "text is not Unicode: '\\ud800' at 0 stands alone",
    b'{"prompt": "\xff"}': "not UTF-8: byte 0xff at 12",
    b'{"prompt": [' + b"9" * 5000 + b"]}": "not JSON that can be read",
    b"[" * 100_000: "not JSON that can be read",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:40].decode(errors="replace"))
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path, line):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'{"prompt": "good"}\n\n' + line + b'\n{"prompt": "good"}\n')
    with pytest.raises(ValueError, match="line 3") as caught:
        read_prompts(file)
    assert str(caught.value).startswith(f"{file}, line 3: {BAD_LINES[line]}")
    assert len(str(caught.value)) < len(str(file)) + 200


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_prompts_is_refused(tmp_path, content):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"must hold at least one prompt; got none"):
        read_prompts(file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.jsonl"):
        read_prompts(tmp_path / "absent.jsonl")


def test_text_that_no_tokenizer_can_read_is_refused():
    assert checked_text("Zwölf 十二 🙂") == "Zwölf 十二 🙂"
    with pytest.raises(ValueError, match="at 1 stands alone"):
        checked_text("a\udcff")
