"""One text or chat to train on, and how files of them are read and cleaned."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jax_smash.finish import LENGTH, REASONS

# UTF-8 once misread as Windows-1252 comes first: it holds characters that the later pairs would change.
_REPLACED = {
    "â€œ": '"', "â€™": "'", "â€˜": "'", 'â€"': " -- ", "â€": '"', "“": '"', "”": '"', "„": '"', "‘": "'", "’": "'",
    "´": "'", "–": "-", "—": "--", "―": "--", "…": "...", "\u00a0": " ", "\u2003": " ", "\u2029": "\n\n",
    "\ufeff": "", "\ufffd": "", "\r\n": "\n",
}  # fmt: skip
_DROPPED = re.compile(
    r"<\|[a-z_]+\|>"  # A special token written out in a text would end the document or forge a turn.
    r"|<<[^<>\n]*>>"  # Calculator notes in worked answers.
    r"|\[(?:Illustration|Drawing|Hieroglyphics)[^\]]*\]|\[\d+\]|^[ \t]*(?:\*[ \t]*)+$|^[ \t]*_{4,}[ \t]*$",
    re.MULTILINE,
)
CUT = REASONS[LENGTH]
"""Why an answer ended that is not whole."""

_NUMBERED = re.compile(r"^(\d+) (.*)$")


class Document(NamedTuple):
    """One text, or one chat (`{"role", "content"}` each).

    `answers` are parts of the text or of the last message, in their order, that can be told from what stands before
    them; each is the last of its kind before the next. `circle` is the end of a text that should not have been written:
    it says again what stands before it. A document is incomplete where its text goes on in another passage, or was cut
    off. Documents of one `origin` are held out together: what a model's own answer was given to, or what tells the
    document apart that this one was made from.
    """

    text: str = ""
    messages: tuple[dict[str, str], ...] = ()
    answers: tuple[str, ...] = ()
    circle: str = ""
    complete: bool = True
    origin: str = ""

    @property
    def key(self) -> str:
        """What tells documents apart."""
        return self.text + json.dumps(self.messages)

    @property
    def decides(self) -> str:
        """What decides whether a document is held out."""
        return self.origin or self.key


def clean(text: str) -> str:
    """Returns the text with plain quotes and dashes, without picture captions, rules and written-out special tokens."""
    for old, new in _REPLACED.items():
        text = text.replace(old, new)
    text = re.sub(r"(?<=\S)[ \t]{2,}(?=\S)", " ", _DROPPED.sub("", text))
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)).strip()


def read_documents(path: Path, *, passage: int) -> Iterator[Document]:
    """Yields the documents of a file.

    A `.txt` file is one text, unless its lines are numbered from 1 again and again: then it holds stories with
    questions, each question followed by a tab and its answer. A line of a `.jsonl` file and an element of a `.json`
    list is one of

    - `{"text"}`;
    - `{"messages": [{"role", "content"}, …]}`;
    - `{"turns": [user, assistant, …]}`;
    - `{"prompt", "response"}`, `{"question", "answer"}` or `{"instruction", "input", "output"}`.

    Other keys are ignored. A dialogue's closing user turn, which has no reply, is dropped, and so is a document that
    cleaning leaves empty. A line of `train.regenerate`, which has `finish_reason`, is not cleaned: it is what a model
    said, to the letter. Its `prompt`, where it is a text, is that which it begins with.

    Raises:
      ValueError: the file is not UTF-8 text, or a line is none of these; file and line are named.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as UTF-8 text: {error}") from error
    if path.suffix == ".txt":
        questions = bool(re.match(r"1 .*\n2 ", content)) and "\t" in content
        yield from _numbered_stories(content) if questions else _passages(clean(content), passage)
        return
    for number, read in _rows(path, content):
        try:
            yield from _row_documents(read(), passage)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error


def _rows(path: Path, content: str) -> Iterator[tuple[int, Callable[[], Any]]]:
    """Yields each row's number and what reads it."""
    if path.suffix == ".jsonl":
        for number, line in enumerate(content.split("\n"), start=1):
            if line.strip():
                yield number, lambda line=line: json.loads(line)
        return
    try:
        rows = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(rows, list):
        raise ValueError(f"{path} must hold a list; got {type(rows).__name__}")
    for number, row in enumerate(rows, start=1):
        yield number, lambda row=row: row


def _row_documents(row: Any, passage: int) -> list[Document]:
    match row:
        case {"text": str(text), "finish_reason": ended}:
            if not isinstance(prompt := row.get("prompt", ""), str):
                raise ValueError(f"the prompt of a text must be a string; got {type(prompt).__name__}")
            return [Document(text, complete=ended != CUT, origin=prompt)] if text else []
        case {"text": str(text)}:
            return _passages(clean(text), passage)
        case {"messages": [*messages]} if all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in messages
        ):
            said = [(message["role"], message["content"]) for message in messages]
            return _own_answer(said, row["finish_reason"]) if "finish_reason" in row else _chat(said)
        case {"turns": [*turns]} if all(isinstance(turn, str) for turn in turns):
            pass
        case {"prompt": str(prompt), "response": str(response)}:
            turns = [prompt, response]
        case {"question": str(prompt), "answer": str(response)}:
            turns = [prompt, response]
        case {"instruction": str(prompt), "output": str(response)}:
            turns = ["\n".join(filter(None, (prompt, row.get("input")))), response]
        case other:
            got = sorted(other) if isinstance(other, dict) else type(other).__name__
            raise ValueError(
                "expected text, messages, turns, prompt and response, question and answer, or instruction and output, "
                f"as strings; got {got}"
            )
    return _chat([(("user", "assistant")[i % 2], turn) for i, turn in enumerate(turns)])


def _check_roles(turns: list[tuple[str, str]]) -> None:
    if unknown := {role for role, _ in turns} - {"system", "user", "assistant"}:
        raise ValueError(f"role must be system, user or assistant; got {sorted(unknown)[0]!r}")


def _own_answer(turns: list[tuple[str, str]], ended: str) -> list[Document]:
    """Returns a chat whose last message a model wrote."""
    _check_roles(turns)
    if not turns or turns[-1][0] != "assistant":
        raise ValueError("the last message must be the assistant's: it has a finish_reason")
    messages = tuple({"role": role, "content": content} for role, content in turns)
    return [Document(messages=messages, complete=ended != CUT, origin=json.dumps(messages[:-1]))]


def _chat(turns: list[tuple[str, str]]) -> list[Document]:
    """Returns the chat up to its last reply."""
    _check_roles(turns)
    while turns and turns[-1][0] != "assistant":
        turns = turns[:-1]
    messages = tuple({"role": role, "content": clean(content)} for role, content in turns)
    return [Document(messages=messages)] if messages and all(m["content"] for m in messages) else []


def _numbered_stories(content: str) -> Iterator[Document]:
    story: list[str] = []
    for line in content.split("\n"):
        if not (match := _NUMBERED.match(line)):
            continue
        if match[1] == "1" and story:
            yield Document("\n".join(story))
            story = []
        story.append(" ".join(part.strip() for part in match[2].split("\t")[:2]))
    if story:
        yield Document("\n".join(story))


def _passages(text: str, size: int) -> list[Document]:
    target = len(text) / max(1, -(-len(text) // size))
    pieces: list[str] = []
    for paragraph in text.split("\n\n") if text else ():
        if pieces and len(pieces[-1]) < target:
            pieces[-1] += "\n\n" + paragraph
        else:
            pieces.append(paragraph)
    return [Document(piece, complete=i == len(pieces)) for i, piece in enumerate(pieces, start=1)]
