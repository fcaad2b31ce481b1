"""What a model is to be asked, from files of prompts, chats, questions and instructions in their common layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jax_smash.serve.prompts import FilePrompt, checked_prompt
from train.run.program import reason

ENDINGS = (".jsonl", ".json")

SPEAKERS = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "model": "assistant",
}
"""Roles, by the names that a `from` has."""

LAYOUTS = (
    'a text, {"prompt"}, {"messages": [{"role", "content"}]}, {"conversations": [{"from", "value"}]}, {"turns": [text]}'
    ', {"question"}, or {"instruction"} with "input", "context" or "instances"'
)


def read_questions(path: Path) -> list[FilePrompt]:
    """Returns what the rows of a file ask, or of all files in a folder, as it stands there, in order.

    A row is a line of a `.jsonl` file or an element of the list of a `.json` file; each has any of these layouts:

    - a text, or `{"prompt"}` as `jax-smash generate` reads it: text, tokens or messages;
    - `{"messages": [{"role", "content"}, …]}`, or `{"conversations": [{"from", "value"}, …]}` (ShareGPT);
    - `{"turns": [user, assistant, …]}`; with a `question_id`, all turns are the user's, and the first is asked;
    - `{"question"}`;
    - `{"instruction"}`, with what it is about behind it: `input` (Alpaca), `context` (Dolly), or the `input` of the
      first of `instances` (Self-Instruct).

    Of a chat that ends with a reply, what stands before that is asked. Other fields are ignored.

    Raises:
      OSError: a file cannot be read.
      ValueError: a row has no such layout or asks nothing, which the message names, or there is no row.
    """
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix in ENDINGS)
        if not found:
            raise ValueError(f"{path} must hold .jsonl or .json files of prompts; got none")
        return [question for file in found for question in read_questions(file)]
    asked = []
    for where, row in _rows(path):
        try:
            asked.append(_asked(json.loads(row) if isinstance(row, str) else row[0]))
        except ValueError as error:
            raise ValueError(f"{where}: {reason(error)}") from error
    if not asked:
        raise ValueError(f"{path} must hold at least one prompt; got none")
    return asked


def _rows(path: Path) -> list[tuple[str, Any]]:
    """Returns each row with where it stands: a line that is JSON, or what a list holds, in a tuple of its own."""
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: byte {error.object[error.start]:#04x} at {error.start}") from error
    if path.suffix != ".json":
        lines = enumerate(content.split("\n"), start=1)
        return [(f"{path}, line {number}", line) for number, line in lines if line.strip()]
    try:
        rows = json.loads(content)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(rows, list):
        raise ValueError(f"{path} must hold a list; got {type(rows).__name__}")
    return [(f"{path}, element {number}", (row,)) for number, row in enumerate(rows, start=1)]


def _asked(row: Any) -> FilePrompt:
    match row:
        case str(text) | {"prompt": str(text)}:
            return checked_prompt(text)
        case {"prompt": prompt}:
            return checked_prompt(prompt)
        case {"messages": [*messages]}:
            return _before_reply([_message(message, "role", "content") for message in messages])
        case {"conversations": [*messages]}:
            return _before_reply([_message(message, "from", "value") for message in messages])
        case {"turns": [str(first), *_], "question_id": _}:
            return _before_reply([("user", first)])
        case {"turns": [*turns]} if all(isinstance(turn, str) for turn in turns):
            return _before_reply([(("user", "assistant")[i % 2], turn) for i, turn in enumerate(turns)])
        case {"instruction": str(instruction)}:
            return _before_reply([("user", "\n".join(part for part in (instruction, _about(row)) if part))])
        case {"question": str(question)}:
            return _before_reply([("user", question)])
    got = sorted(row) if isinstance(row, dict) else type(row).__name__
    raise ValueError(f"expected {LAYOUTS}; got {got}")


def _about(row: dict[str, Any]) -> str:
    """Returns what an instruction is about."""
    instances = row.get("instances")
    first = instances[0] if isinstance(instances, list) and instances and isinstance(instances[0], dict) else {}
    found = next((about for about in (row.get("input"), row.get("context"), first.get("input")) if about), "")
    if not isinstance(found, str):
        raise ValueError(f"what an instruction is about must be a text; got {type(found).__name__}")
    return found


def _message(message: Any, speaker: str, said: str) -> tuple[str, str]:
    """Returns a message's role and what it says, by the names of these fields."""
    role, content = (message.get(speaker), message.get(said)) if isinstance(message, dict) else (None, None)
    if not isinstance(role, str) or not isinstance(content, str):
        raise ValueError(f"each message must have {speaker} and {said}, both texts; got {message!r:.60}")
    if role not in SPEAKERS:
        raise ValueError(f"{speaker} must be one of {', '.join(SPEAKERS)}; got {role!r}")
    return SPEAKERS[role], content


def _before_reply(turns: list[tuple[str, str]]) -> FilePrompt:
    """Returns a chat without the reply that it ends with."""
    turns = turns[:-1] if turns and turns[-1][0] == "assistant" else turns
    if not turns or not turns[-1][1]:
        raise ValueError("a chat must have a message before the reply that is written anew; got none")
    return checked_prompt([{"role": role, "content": content} for role, content in turns])
