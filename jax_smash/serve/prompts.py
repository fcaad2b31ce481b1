"""A file of prompts: one JSON object a line."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EXPECTED = 'each line must be an object like {"prompt": "Once upon a time"}'

FilePrompt = str | list[int] | list[dict[str, str]]
"""Text, tokens, or chat messages (`{"role": …, "content": …}`)."""


def read_prompts(path: str | Path) -> list[FilePrompt]:
    """Returns the prompts of a JSON-lines file, in order.

    Every line is an object whose `prompt` is a text, a list of tokens, or a list of chat messages; its other fields
    are ignored, and so are blank lines.

    Args:
      path: the file, in UTF-8.

    Raises:
      OSError: the file cannot be read.
      ValueError: a line is malformed, which the message names, or there is no prompt at all.
    """
    prompts = []
    for number, line in enumerate(Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            try:
                prompts.append(_prompt(line))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
    if not prompts:
        raise ValueError(f"{path} must hold at least one prompt; got none")
    return prompts


def _prompt(line: bytes) -> FilePrompt:
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte {error.object[error.start]:#04x} at {error.start}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}; {EXPECTED}") from error
    except (RecursionError, ValueError) as error:
        raise ValueError(f"not JSON that can be read: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{EXPECTED}; got {_kind(record)}")
    if "prompt" not in record:
        raise ValueError(f'expected a field "prompt"; got {", ".join(map(repr, record)) or "no field"}')
    return checked_prompt(record["prompt"])


def checked_prompt(prompt: Any) -> FilePrompt:
    """Returns a prompt.

    Raises:
      ValueError: it is neither text nor tokens nor messages, or empty.
    """
    if isinstance(prompt, str):
        checked_text(prompt)
    elif not isinstance(prompt, list):
        raise ValueError(f"prompt must be text, tokens or chat messages; got {_kind(prompt)}")
    elif prompt and isinstance(prompt[0], dict):
        check_messages(prompt)
    else:
        for i, token in enumerate(prompt):
            if not isinstance(token, int) or isinstance(token, bool):
                raise ValueError(
                    f"entry {i} of prompt must be a token (an integer) like all others; got {_kind(token)}"
                )
    if not prompt:
        raise ValueError("prompt is empty")
    return prompt


def checked_text(text: str) -> str:
    """Returns the text.

    Raises:
      ValueError: it is no Unicode text: half of a surrogate pair cannot be encoded.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text is not Unicode: {text[error.start]!a} at {error.start} stands alone") from error
    return text


def check_messages(messages: Sequence[Any]) -> None:
    """Refuses messages of a chat without a role and a content that are texts.

    Raises:
      ValueError: one is no such message.
    """
    for i, message in enumerate(messages):
        _check_message(i, message)


def _check_message(i: int, message: Any) -> None:
    if not isinstance(message, Mapping):
        raise ValueError(f"message {i} must be an object like the first; got {_kind(message)}")
    for field in ("role", "content"):
        if not isinstance(message.get(field), str):
            got = _kind(message[field]) if field in message else "none"
            raise ValueError(f"message {i} must have a text {field!r}; got {got}")
        checked_text(message[field])


def _kind(value: Any) -> str:
    """Says what a JSON value is, in few characters."""
    if isinstance(value, dict | list):
        return {dict: "an object", list: "a list"}[type(value)]
    shown = json.dumps(value)
    return shown if len(shown) <= 40 else f"{shown[:40]}…"
