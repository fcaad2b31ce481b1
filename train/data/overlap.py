"""Which prompts say what an evaluation asks: those that share thirteen words in a row with it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jax_smash.cli.resume import MADE_WITH
from jax_smash.serve.prompts import FilePrompt

WORDS = 13
"""Words of a gram that no prompt may share with an evaluation."""

AVOID = "avoid"
"""Option, in the record of a file of answers, that says which prompts were left out."""

FIELDS = ("text", "prompt", "question", "instruction", "input", "turns", "messages")
"""Of a line of an evaluation: what is asked. Answers and references are not looked at."""

_WORD = re.compile(r"[^\W_]+")

Gram = tuple[str, ...]


class Avoided:
    """What the texts of some evaluations say, for prompts that are not to say it.

    A text's words are its runs of letters and digits, lower-cased. Two texts overlap where `WORDS` words in a row of
    one stand in the other too. A text of fewer words than that overlaps with one of the very same words alone.

    Source: Brown et al. 2020, "Language Models are Few-Shot Learners", appendix C.
    Differs: a prompt that overlaps is left out as a whole, and no gram is too common to count.

    Args:
      texts: of the evaluations.
    """

    def __init__(self, texts: Iterable[str]):
        self._grams = {gram for text in texts for gram in grams(text)}

    def meets(self, texts: Iterable[str]) -> bool:
        """Returns whether one of the texts overlaps with an evaluation's."""
        return any(gram in self._grams for text in texts for gram in grams(text))


def grams(text: str) -> Iterator[Gram]:
    """Yields a text's runs of `WORDS` words; of a text with fewer words all of them, if there are any."""
    words = _WORD.findall(text.lower())
    for end in range(min(WORDS, len(words)), len(words) + 1) if words else ():
        yield tuple(words[max(0, end - WORDS) : end])


def read_avoided(paths: Sequence[Path]) -> Avoided:
    """Returns what the lines of `.jsonl` files ask: texts, or objects that have one of `FIELDS`.

    Raises:
      OSError: a file cannot be read.
      ValueError: a line is neither, which the message names, or a file has no line.
    """
    return Avoided(text for path in paths for text in _file_texts(path))


def kept_prompts(prompts: Sequence[FilePrompt], avoided: Avoided) -> list[FilePrompt]:
    """Returns the prompts that do not overlap with an evaluation, in their order.

    Raises:
      ValueError: a prompt is given as tokens, which have no words, or no prompt is left.
    """
    kept = [prompt for i, prompt in enumerate(prompts) if not avoided.meets(_prompt_texts(i, prompt))]
    if not kept:
        raise ValueError(f"all {len(prompts)} prompts share {WORDS} words in a row with what is to be avoided")
    return kept


def left_out_of(path: Path) -> dict[str, Any] | None:
    """Returns what a file of answers says of the prompts that were left out; None where it says nothing of any.

    It is told as `train.regenerate` writes it, in the file's first line: how many of how many prompts (`left_out` and
    `of`), for so many `words` in a row of files that `sha256` names.

    Raises:
      OSError: the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8") as file:
            told = json.loads(file.readline())[MADE_WITH]["options"][AVOID]
        return {name: told[name] for name in ("left_out", "of", "words", "sha256")}
    except (ValueError, KeyError, TypeError):
        return None  # No answers, or all prompts were kept.


def digest(path: Path) -> str:
    """Returns letters that stand for a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _prompt_texts(number: int, prompt: FilePrompt) -> list[str]:
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], dict):
        return [message["content"] for message in prompt]
    raise ValueError(f"prompt {number} must be text or a chat beside --avoid; got tokens, which have no words")


def _file_texts(path: Path) -> list[str]:
    lines = [(n, line) for n, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1) if line.strip()]
    if not lines:
        raise ValueError(f"{path} must hold at least one text to avoid; got none")
    return [text for number, line in lines for text in _line_texts(f"{path}, line {number}", line)]


def _line_texts(where: str, line: str) -> list[str]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {error}") from error
    asked = [row] if isinstance(row, str) else [row[name] for name in FIELDS if name in row] if _has_fields(row) else []
    texts = [text for value in asked for text in _texts(value)]
    if not texts:
        got = ", ".join(map(repr, row)) if isinstance(row, dict) else type(row).__name__
        raise ValueError(f"{where} must be a text, or have a text in one of {', '.join(FIELDS)}; got {got}")
    return texts


def _has_fields(row: Any) -> bool:
    return isinstance(row, dict) and any(name in row for name in FIELDS)


def _texts(value: Any) -> list[str]:
    """Returns the texts of a field: its own, those of a list, or those of a chat's messages."""
    if isinstance(value, list):
        return [text for each in value for text in _texts(each)]
    if isinstance(value, dict):
        value = value.get("content")
    return [value] if isinstance(value, str) and value.strip() else []
