"""The text that a model is trained on: its sources, how each is read and cleaned, and what is held out."""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import itertools
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from jax_smash.tasks import TASKS, examples
from jax_smash.tasks.lessons import LESSONS, Lesson, lessons
from train.data.documents import Document, read_documents
from train.run.program import reason

HELD_OUT_SPLIT, TRAIN_SPLIT = "held_out", "train"


@dataclasses.dataclass(frozen=True)
class Source:
    """One kind of text, from files or from the generator of a recall task.

    Attributes:
      name: unique among a corpus's sources.
      share: of the tokens trained on, relative to the other sources' shares.
      paths: files, folders of `.jsonl`, `.json` and `.txt` files, or patterns, relative to the data root.
      task: name of a recall task, in place of `paths`.
      count: examples of the task, or of `paths` the documents read at most, 0 for all.
      lengths: tokens of the task's examples, in turn.
      chats: share of the task's examples that are written as chats.
      lessons: the task's texts of many questions, in place of its examples.
      shown: answers that an example's prompt shows are marked as answers too.
      echo: in place of a file's texts, their words in random order: the least and the most of them in a list, and how
        often each list is said. A small model that is to look back learns it first where most targets ask for it.
      circles: in place of a file's texts, passages of them that go on in circles, for a model to unlearn.
    """

    name: str
    share: float = 1.0
    paths: tuple[str, ...] = ()
    task: str = ""
    count: int = 0
    lengths: tuple[int, ...] = ()
    chats: float = 0.0
    lessons: bool = False
    shown: bool = False
    echo: tuple[int, ...] = ()
    circles: bool = False

    def __post_init__(self) -> None:
        if self.share <= 0:
            raise ValueError(f"source {self.name!r}: share must be above 0; got {self.share}")
        if self.count < 0:
            raise ValueError(f"source {self.name!r}: count must be at least 0; got {self.count}")
        if self.echo and not (
            self.paths and len(self.echo) == 3 and 0 < self.echo[0] <= self.echo[1] and self.echo[2] > 1
        ):
            raise ValueError(
                f"source {self.name!r}: echo must be a least, a most and a number of times, of paths; got {self.echo}"
            )
        if self.circles and (self.echo or not self.paths):
            raise ValueError(f"source {self.name!r}: circles must be of paths, and no echo")
        if bool(self.paths) == bool(self.task):
            raise ValueError(f"source {self.name!r}: expected either paths or a task; got both or neither")
        if self.task and self.task not in TASKS:
            raise ValueError(f"source {self.name!r}: task must be one of {', '.join(TASKS)}; got {self.task!r}")
        if self.task and not (self.count > 0 and self.lengths and 0 <= self.chats <= 1):
            raise ValueError(
                f"source {self.name!r}: a task needs count > 0, lengths, and 0 <= chats <= 1; got {self.count}, "
                f"{self.lengths}, {self.chats}"
            )
        if self.shown and (self.lessons or not self.task):
            raise ValueError(f"source {self.name!r}: shown answers are those of a task's examples")
        if self.lessons and (self.task not in LESSONS or self.chats):
            raise ValueError(
                f"source {self.name!r}: lessons are texts of one of {', '.join(LESSONS)}; got {self.task!r} and "
                f"{self.chats} chats"
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
        raise ValueError(f"{path} is not a corpus file: {reason(error)}") from error


def source_files(source: Source, root: Path) -> list[Path]:
    """Returns the source's files in order.

    Raises:
      ValueError: a path names none.
    """
    files: list[Path] = []
    for name in source.paths:
        path = root / name
        if path.exists():
            found = path.iterdir() if path.is_dir() else iter((path,))
        else:
            found = map(Path, glob.glob(os.path.join(glob.escape(str(root)), name)))
        matches = sorted(match for match in found if match.suffix in (".jsonl", ".json", ".txt"))
        if not matches:
            raise ValueError(f"source {source.name!r}: expected a .jsonl, .json or .txt file at {path}; got none")
        files += matches
    return files


def _task_documents(source: Source, size: Callable[[str], int]) -> Iterator[Document]:
    """Yields the task's lessons or training examples, the lengths in turn, every so many of the latter a chat."""
    draw = lessons if source.lessons else functools.partial(examples, split="train")
    count = -(-source.count // len(source.lengths))
    made = [draw(source.task, count=count, seed=0, length=n, size=size) for n in source.lengths]
    drawn = itertools.islice((e for group in zip(*made, strict=True) for e in group), source.count)
    for i, example in enumerate(drawn):
        if isinstance(example, Lesson):
            yield Document(example.text, answers=example.answers)
        elif int((i + 1) * source.chats) > int(i * source.chats):
            yield Document(messages=example.messages, answers=(example.messages[-1]["content"],))
        else:
            yield Document(example.text, answers=(*example.shown * source.shown, example.answer))


def _made_from(documents: Iterable[Document], make: Callable[[str], Iterator[Document]]) -> Iterator[Document]:
    """Yields what is made from the texts of documents, each to be held out where its document is."""
    for document in documents:
        yield from (made._replace(origin=document.decides) for made in make(document.text))


def _echoes(text: str, least: int, most: int, times: int) -> Iterator[Document]:
    rng = random.Random(text)
    words = text.split()
    rng.shuffle(words)
    while len(words) >= least:
        count = rng.randint(least, most)
        line = " ".join(words[:count])
        yield Document("\n".join([line] * times), answers=(line,) * (times - 1))
        words = words[count:]


def _circles(text: str) -> Iterator[Document]:
    """Yields passages of a text up to a place, from where a few sentences or words are said again and again.

    Source: Xu et al. 2022, Learning to Break the Loop, section 3.2. Differs: the loss is that of unlikelihood training;
    not only single sentences are repeated.
    """
    rng, sentences = random.Random(text), re.split(r"(?<=[.!?\"])\s+", text)
    while len(sentences) > 2:
        passage, sentences = sentences[: rng.randint(1, 6)], sentences[6:]
        words = " ".join(passage).split()
        if rng.random() < 0.6:
            said = " ".join(passage[-rng.randint(1, 3) :]).split()
        else:
            said = words[-rng.randint(1, 8) :]
        circle = "".join(" " + " ".join(said) for _ in range(rng.randint(1, 1 + 40 // len(said))))
        yield Document(" ".join(words) + circle, circle=circle, complete=False)


def split_documents(
    source: Source, corpus: Corpus, root: Path, size: Callable[[str], int] | None = None
) -> Iterator[tuple[str, Document]]:
    """Yields the source's distinct documents, each with its split: `train` or `held_out`.

    A document's content alone decides, so equal documents never part; nor do a model's answers to one prompt. Echoes
    and circles go with the document that they are made from: no held-out text is trained on in another form.

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
            documents = _made_from(documents, lambda text: _echoes(text, *source.echo))
        if source.circles:
            documents = _made_from(documents, _circles)
        if source.count:
            documents = itertools.islice(documents, source.count)
    seen, trained = set(), 0
    for document in documents:
        digest = hashlib.sha256(document.key.encode()).digest()[:16]
        if digest in seen:
            continue
        seen.add(digest)
        decides = hashlib.sha256(document.decides.encode()).digest()
        held_out = int.from_bytes(decides[:8], "big") / 2**64 < corpus.held_out
        trained += not held_out
        yield (HELD_OUT_SPLIT if held_out else TRAIN_SPLIT), document
    if not trained:
        raise ValueError(f"source {source.name!r} must have a document to train on; got {len(seen)} held-out ones")
