"""The text that a model is trained on: its sources, how each is read and cleaned, and what is held out."""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jax_smash.tasks import TASKS, examples

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
_NUMBERED = re.compile(r"^(\d+) (.*)$")

HELD_OUT_SPLIT, TRAIN_SPLIT = "held_out", "train"


@dataclasses.dataclass(frozen=True)
class Source:
    """One kind of text, from files or from the generator of a recall task.

    Attributes:
      name: unique among a corpus's sources.
      share: of the tokens trained on, relative to the other sources' shares.
      paths: files, folders of `.jsonl`, `.json` and `.txt` files, or patterns, relative to the data root.
      task: name of a recall task, in place of `paths`.
      count: examples of the task.
      lengths: tokens of the task's examples, in turn.
      chats: share of the task's examples that are written as chats.
      echo: in place of a file's texts, their words in random order: the least and the most of them in a list, and how
        often each list is said. A small model that is to look back learns it first where most targets ask for it.
    """

    name: str
    share: float = 1.0
    paths: tuple[str, ...] = ()
    task: str = ""
    count: int = 0
    lengths: tuple[int, ...] = ()
    chats: float = 0.0
    echo: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.share <= 0:
            raise ValueError(f"source {self.name!r}: share must be above 0; got {self.share}")
        if self.echo and not (
            self.paths and len(self.echo) == 3 and 0 < self.echo[0] <= self.echo[1] and self.echo[2] > 1
        ):
            raise ValueError(
                f"source {self.name!r}: echo must be a least, a most and a number of times, of paths; got {self.echo}"
            )
        if bool(self.paths) == bool(self.task):
            raise ValueError(f"source {self.name!r}: expected either paths or a task; got both or neither")
        if self.task and self.task not in TASKS:
            raise ValueError(f"source {self.name!r}: task must be one of {', '.join(TASKS)}; got {self.task!r}")
        if self.task and not (self.count > 0 and self.lengths and 0 <= self.chats <= 1):
            raise ValueError(
                f"source {self.name!r}: a task needs count > 0, lengths, and 0 <= chats <= 1; got {self.count}, "
                f"{self.lengths}, {self.chats}"
            )


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Sources and how they are cut: `held_out` is a share of the documents, `passage` in characters.

    A text longer than `passage` is cut at blank lines into passages, each a document of its own.
    """

    sources: tuple[Source, ...]
    vocab_size: int = 4096
    held_out: float = 0.01
    passage: int = 8000

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        if not (0 <= self.held_out < 1 and self.passage > 0 and names and len({*names}) == len(names)):
            raise ValueError(f"expected 0 <= held_out < 1, passage > 0, sources of different names; got {self}")


class Document(NamedTuple):
    """One text, or one chat (`{"role", "content"}` each).

    `answer` is a part of the text or of the last message that can be told from what stands before it; empty where
    there is none. A document is incomplete where its text goes on in another passage.
    """

    text: str = ""
    messages: tuple[dict[str, str], ...] = ()
    answer: str = ""
    complete: bool = True

    @property
    def key(self) -> str:
        """What tells documents apart."""
        return self.text + json.dumps(self.messages)


def load_corpus(path: Path) -> Corpus:
    """Returns the corpus of a JSON file, which may stand in it as `corpus`, beside what `train.base` reads.

    Raises:
      ValueError: a field is missing, unknown or out of range.
    """
    try:
        fields = json.loads(Path(path).read_text(encoding="utf-8"))
        fields = dict(fields.get("corpus", fields))
        sources = tuple(
            Source(**{name: tuple(value) if isinstance(value, list) else value for name, value in source.items()})
            for source in fields.pop("sources")
        )
        return Corpus(sources=sources, **fields)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a corpus file: {error!r}") from error


def clean(text: str) -> str:
    """Returns the text with plain quotes and dashes, without picture captions, rules and written-out special tokens."""
    for old, new in _REPLACED.items():
        text = text.replace(old, new)
    text = re.sub(r"(?<=\S)[ \t]{2,}(?=\S)", " ", _DROPPED.sub("", text))
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)).strip()


def source_files(source: Source, root: Path) -> list[Path]:
    """Returns the source's files in order.

    Raises:
      ValueError: a path names none.
    """
    files = []
    for path in (root / name for name in source.paths):
        matches = path.iterdir() if path.is_dir() else map(Path, glob.glob(str(path)))
        matches = sorted(match for match in matches if match.suffix in (".jsonl", ".json", ".txt"))
        if not matches:
            raise ValueError(f"source {source.name!r}: expected a .jsonl, .json or .txt file at {path}; got none")
        files += matches
    return files


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
    cleaning leaves empty.

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
        case {"text": str(text)}:
            return _passages(clean(text), passage)
        case {"messages": [*messages]} if all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in messages
        ):
            return _chat([(message["role"], message["content"]) for message in messages])
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


def _chat(turns: list[tuple[str, str]]) -> list[Document]:
    """Returns the chat up to its last reply."""
    roles = {role for role, _ in turns}
    if unknown := roles - {"system", "user", "assistant"}:
        raise ValueError(f"role must be system, user or assistant; got {sorted(unknown)[0]!r}")
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


def _task_documents(source: Source, size: Callable[[str], int]) -> Iterator[Document]:
    """Yields the task's training examples, the lengths in turn, every so many of them a chat."""
    made = [
        examples(source.task, split="train", count=-(-source.count // len(source.lengths)), seed=0, length=n, size=size)
        for n in source.lengths
    ]
    for i, example in enumerate(
        itertools.islice((e for group in zip(*made, strict=True) for e in group), source.count)
    ):
        if int((i + 1) * source.chats) > int(i * source.chats):
            yield Document(messages=example.messages, answer=example.messages[-1]["content"])
        else:
            yield Document(example.text, answer=example.answer)


def _echoes(text: str, least: int, most: int, times: int) -> Iterator[Document]:
    rng = random.Random(text)
    words = text.split()
    rng.shuffle(words)
    while len(words) >= least:
        count = rng.randint(least, most)
        yield Document("\n".join([" ".join(words[:count])] * times))
        words = words[count:]


def split_documents(
    source: Source, corpus: Corpus, root: Path, size: Callable[[str], int] | None = None
) -> Iterator[tuple[str, Document]]:
    """Yields the source's distinct documents, each with its split: `train` or `held_out`.

    A document's content alone decides, so equal documents never part.

    Args:
      source: what is read.
      corpus: says which share is held out.
      root: where the source's paths begin.
      size: tokens of a text, for the lengths of a task's examples; None counts words.

    Raises:
      ValueError: a file is unreadable, or no document is left to train on.
    """
    if source.task:
        documents = _task_documents(source, size or (lambda text: len(text.split())))
    else:
        files = source_files(source, root)
        documents = itertools.chain.from_iterable(read_documents(path, passage=corpus.passage) for path in files)
        if source.echo:
            documents = itertools.chain.from_iterable(_echoes(d.text, *source.echo) for d in documents)
    seen, trained = set(), 0
    for document in documents:
        digest = hashlib.sha256(document.key.encode()).digest()[:16]
        if digest in seen:
            continue
        seen.add(digest)
        held_out = int.from_bytes(digest[:8], "big") / 2**64 < corpus.held_out
        trained += not held_out
        yield (HELD_OUT_SPLIT if held_out else TRAIN_SPLIT), document
    if not trained:
        raise ValueError(f"source {source.name!r} must have a document to train on; got {len(seen)} held-out ones")
