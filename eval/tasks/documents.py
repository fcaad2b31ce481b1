"""Perplexity of held-out text: every token of every document, scored once."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from eval.engine import Engine
from eval.intervals import ratio_bootstrap
from eval.paired import difference_of_nats
from eval.tasks.outcome import Outcome
from eval.tasks.records import front, read_records


@dataclasses.dataclass(frozen=True)
class Document:
    """A text and what tells it apart."""

    name: str
    text: str


@dataclasses.dataclass(frozen=True)
class DocumentSet:
    """Documents scored by perplexity a token.

    Attributes:
      task: its name.
      documents: at least one, none empty.
      settings: what the score depends on, for the row.
    """

    task: str
    documents: tuple[Document, ...]
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    def measure(self, engine: Engine) -> list[Outcome]:
        """Returns exp(nats / tokens) over all tokens of all documents, with nats a token and bits a byte.

        A document longer than the context is read in windows that overlap by half, so that a token has at least half
        a window before it; documents do not see each other. The first token is scored behind the text's beginning;
        the end of a text is not scored.

        Raises:
          ValueError: a document is too short to score.
        """
        texts = [engine.encode(document.text) for document in self.documents]
        for document, text in zip(self.documents, texts, strict=True):
            if len(text) < 2:
                raise ValueError(f"{document.name}: expected a text of several tokens; got {document.text!r}")
        stride = max(1, (engine.context - len(engine.beginning)) // 2)
        nats = negative_log_likelihoods(engine, texts, stride=stride, what=self.task)
        tokens = [len(text) - max(1, len(engine.beginning)) for text in texts]
        sizes = [len(document.text.encode()) for document in self.documents]
        by_token = sum(nats) / sum(tokens)
        interval = ratio_bootstrap(nats, tokens)
        if interval:
            interval = dataclasses.replace(interval, low=math.exp(interval.low), high=math.exp(interval.high))
        return [
            Outcome(
                task=self.task,
                metric="perplexity",
                settings=self.settings | {"context": engine.context, "stride": stride},
                n=len(texts),
                score=math.exp(by_token),
                interval=interval,
                examples=[
                    {"example": d.name, "score": math.exp(n / t), "nats": n, "tokens": t}
                    for d, n, t in zip(self.documents, nats, tokens, strict=True)
                ],
                compare=difference_of_nats,
                more={
                    "tokens": sum(tokens),
                    "bytes": sum(sizes),
                    "nats_per_token": by_token,
                    "bits_per_byte": sum(nats) / math.log(2) / sum(sizes),
                    "documents_in_windows": sum(len(text) > engine.context for text in texts),
                },
            )
        ]


def document_set(source: str, *, count: int | None) -> DocumentSet:
    """Returns the documents of a data set.

    Args:
      source: a file of one {"text": …} a line, a `.txt` file that is one document, a folder of `.txt` files, or a hub
        data set.
      count: documents, from the front; None takes all.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: an entry is malformed, which the message names, or there are fewer than `count`.
    """
    path = Path(source)
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path] if path.suffix == ".txt" else []
    if files:
        documents = [Document(name=str(file), text=_read(file)) for file in front(files, count, source)]
    else:
        documents = [Document(name=r.where, text=r.text("text")) for r in front(read_records(source), count, source)]
    for document in documents:
        if not document.text.strip():
            raise ValueError(f"{document.name}: expected a text; got {document.text!r}")
    return DocumentSet(task="perplexity", documents=tuple(documents))


def negative_log_likelihoods(engine: Engine, texts: Sequence[list[int]], *, stride: int, what: str) -> list[float]:
    """Returns the nats of each text's tokens behind its beginning; each token counts once.

    Args:
      engine: the model.
      texts: tokens, the beginning included.
      stride: new tokens of each window after the first, in a text longer than the context.
      what: is shown beside the progress.
    """
    pieces = [(i, *window) for i, text in enumerate(texts) for window in windows(engine, text, stride=stride)]
    records = engine.log_probs([tokens for _, tokens, _ in pieces], what=what)
    nats = [0.0] * len(texts)
    for (i, _, scored), record in zip(pieces, records, strict=True):
        nats[i] -= sum(r.log_prob for r in record[len(record) - scored :])
    return nats


def windows(engine: Engine, tokens: list[int], *, stride: int) -> Iterator[tuple[list[int], int]]:
    """Yields pieces of a text that fit the context, and how many of each piece's last tokens are new in it."""
    end = min(len(tokens), engine.context)
    yield tokens[:end], end - max(1, len(engine.beginning))
    while end < len(tokens):
        new = min(stride, len(tokens) - end)
        end += new
        yield engine.fit(tokens[:end], engine.context), new


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8: byte {error.object[error.start]:#04x} at {error.start}") from error
