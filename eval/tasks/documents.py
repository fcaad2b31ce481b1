"""Perplexity of held-out text: every token of every document, scored once."""

import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from eval.scores.engine import Engine
from eval.scores.intervals import ratio_bootstrap
from eval.scores.paired import Compare, difference_of_nats, difference_of_nats_a_word
from eval.tasks.outcome import Outcome
from eval.tasks.records import front, read_records

MOST_NATS = math.log(sys.float_info.max)
"""A token or word, that a perplexity can be told of."""


@dataclasses.dataclass(frozen=True)
class Document:
    """A text and what tells it apart.

    Attributes:
      name: tells it apart.
      text: what is read.
      original: the text as it was given, whose words and bytes count; None where it is what is read, and no words are
        counted.
    """

    name: str
    text: str
    original: str | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the text as it was given."""
        return len((self.text if self.original is None else self.original).encode())


@dataclasses.dataclass(frozen=True)
class DocumentSet:
    """Documents scored by perplexity a token, and a word where all have an original text.

    Attributes:
      task: its name.
      documents: at least one, none empty.
      stride: new tokens of each window after the first, at most what makes windows lie side by side; None takes half a
        window.
      decoded: every token is read by a step of plain decoding, in place of a whole forward.
      settings: what the score depends on, for the row.
    """

    task: str
    documents: tuple[Document, ...]
    stride: int | None = None
    decoded: bool = False
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    def measure(self, engine: Engine) -> list[Outcome]:
        """Returns exp(nats / tokens) over all tokens of all documents, with nats a token and bits a byte.

        A document longer than the context is read in windows, which by default overlap by half, so that a token has at
        least half a window before it; documents do not see each other. The first token is scored behind the text's
        opening; the end of a text is not scored.

        Raises:
          ValueError: a document is too short to score, or its perplexity too large for a number.
        """
        texts = [engine.encode_whole(document.text) for document in self.documents]
        for document, text in zip(self.documents, texts, strict=True):
            if len(text) < 2:
                raise ValueError(f"{document.name}: expected a text of several tokens; got {document.text!r}")
        room = engine.context - len(engine.beginning)
        stride = max(
            1, room // 2 if self.stride is None else min(self.stride, engine.context - first(engine.beginning))
        )
        nats = negative_log_likelihoods(engine, texts, stride=stride, what=self.task, decoded=self.decoded)
        tokens = [len(text) - first(engine.opening) for text in texts]
        more = {
            "tokens": sum(tokens),
            "bytes": sum(document.bytes for document in self.documents),
            "nats_per_token": sum(nats) / sum(tokens),
            "bits_per_byte": sum(nats) / math.log(2) / sum(document.bytes for document in self.documents),
            "documents_in_windows": sum(len(text) > engine.context for text in texts),
        }
        settings = self.settings | {"context": engine.context, "stride": stride}
        by_token = self._outcome("perplexity", settings, nats, "tokens", tokens, difference_of_nats, more)
        if any(document.original is None for document in self.documents):
            return [by_token]
        words = [len((document.original or "").split()) for document in self.documents]
        more = {"words": sum(words), "nats_per_word": sum(nats) / sum(words)}
        return [
            by_token,
            self._outcome("word_perplexity", settings, nats, "words", words, difference_of_nats_a_word, more),
        ]

    def _outcome(
        self,
        metric: str,
        settings: dict[str, Any],
        nats: Sequence[float],
        unit: str,
        sizes: Sequence[int],
        compare: Compare,
        more: dict[str, Any],
    ) -> Outcome:
        """Returns the perplexity of all documents, by the tokens or words that `sizes` counts in each."""
        for document, n, size in zip(self.documents, nats, sizes, strict=True):
            if n / size > MOST_NATS:
                raise ValueError(
                    f"{document.name}: a perplexity is a number up to {MOST_NATS:.0f} nats a {unit[:-1]}; "
                    f"got {n / size:.0f}"
                )
        interval = ratio_bootstrap(nats, sizes)
        if interval:
            interval = dataclasses.replace(interval, low=math.exp(interval.low), high=math.exp(interval.high))
        return Outcome(
            task=self.task,
            metric=metric,
            settings=settings,
            n=len(nats),
            score=math.exp(sum(nats) / sum(sizes)),
            interval=interval,
            examples=[
                {"example": d.name, "score": math.exp(n / size), "nats": n, unit: size}
                for d, n, size in zip(self.documents, nats, sizes, strict=True)
            ],
            compare=compare,
            more=more,
        )


def document_set(source: str, *, count: int | None, stride: int | None = None) -> DocumentSet:
    """Returns the documents of a data set.

    Args:
      source: a file of one {"text": …} a line, a `.txt` file that is one document, a folder of `.txt` files, or a hub
        data set.
      count: documents, from the front; None takes all.
      stride: new tokens of each window after the first, in a document longer than the context; None takes half a
        window.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: an entry is malformed, which the message names, or there are fewer than `count`.
    """
    path = Path(source)
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path] if path.suffix == ".txt" else []
    if files:
        documents = [Document(name=str(file), text=read_text(file)) for file in front(files, count, source)]
    else:
        documents = [Document(name=r.where, text=r.text("text")) for r in front(read_records(source), count, source)]
    for document in documents:
        if not document.text.strip():
            raise ValueError(f"{document.name}: expected a text; got {document.text!r}")
    return DocumentSet(task="perplexity", documents=tuple(documents), stride=stride)


def negative_log_likelihoods(
    engine: Engine, texts: Sequence[list[int]], *, stride: int, what: str, decoded: bool = False
) -> list[float]:
    """Returns the nats of each text's tokens behind its opening; each token counts once.

    Args:
      engine: the model.
      texts: tokens, the opening included.
      stride: new tokens of each window after the first, in a text longer than the context.
      what: is shown beside the progress.
      decoded: every token is read by a step of plain decoding.
    """
    pieces = [(i, *window) for i, text in enumerate(texts) for window in windows(engine, text, stride=stride)]
    records = engine.log_probs([tokens for _, tokens, _ in pieces], what=what, decoded=decoded)
    nats = [0.0] * len(texts)
    for (i, _, scored), record in zip(pieces, records, strict=True):
        nats[i] -= sum(r.log_prob for r in record[len(record) - scored :])
    return nats


def windows(engine: Engine, tokens: list[int], *, stride: int) -> Iterator[tuple[list[int], int]]:
    """Yields pieces of a text that fit the context, and how many of each piece's last tokens are new in it."""
    end = min(len(tokens), engine.context)
    yield tokens[:end], end - first(engine.opening)
    while end < len(tokens):
        new = min(stride, len(tokens) - end)
        end += new
        yield engine.fit(tokens[:end], engine.context), new


def first(opening: Sequence[int]) -> int:
    """Returns the index of the first token that can be scored behind an opening, which may be empty."""
    return max(1, len(opening))


def read_text(path: Path) -> str:
    """Returns the text of a file.

    Raises:
      OSError: it cannot be read.
      ValueError: it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8: byte {error.object[error.start]:#04x} at {error.start}") from error
