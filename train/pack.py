"""Text and chats as tokenised shards, which travel to machines that see neither the text nor a tokenizer.

    python -m train.pack --corpus train/configs/tiny.json --data-root DATA --tokenizer TOKENIZER --output PACKED

The folder holds, for each source and split, arrays of tokens, of marks on them and of the documents' ends, and
`index.json`: what was packed, with which tokenizer, the hashes of both, and what files of answers say of prompts that
were left out. It appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int8, UInt
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from jax_smash.checkpoints.directory import check_new, new_directory
from train.data.corpus import HELD_OUT_SPLIT, TRAIN_SPLIT, Corpus, load_corpus, source_files, split_documents
from train.data.documents import Document
from train.data.overlap import left_out_of
from train.run.program import run_program

INDEX = "index.json"
SHARD_TOKENS = 2**26
"""Tokens from which a shard is closed."""

GROUP = 1024
"""Documents encoded at once."""

ANSWER, CIRCLE = 1, -1
"""Marks of tokens that are part of an answer, and of such as say again what they should not."""


class Encoded(NamedTuple):
    """A document's tokens, and marks on them: `ANSWER`, `CIRCLE` or 0."""

    tokens: UInt[np.ndarray, "n"]
    marks: Int8[np.ndarray, "n"]


def file_sha256(path: Path) -> str:
    """Returns the hash of a file's bytes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def encode(documents: Sequence[Document], tokenizer: Any) -> list[Encoded]:
    """Returns each document's tokens as the model reads them when it decodes, and the token that ends a text.

    A text begins with what the tokenizer itself puts there; a chat is what its template writes. An end that is there
    already is not repeated. An incomplete document has no end, nor does its template close a reply that was cut off.
    """
    dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
    eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    start = [token for token in tokenizer("a")["input_ids"][:1] if token == tokenizer.bos_token_id]
    texts = [_written(document, tokenizer) for document in documents]
    encodings = tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    encoded = []
    for document, text, encoding in zip(documents, texts, encodings, strict=True):
        begin = [] if document.messages or encoding.ids[: len(start)] == start else start
        ended = bool(eos) and text.rstrip().endswith(tokenizer.eos_token)
        end = eos * (document.complete and not ended)
        ids = np.array(begin + encoding.ids + end, dtype)
        marks = np.zeros(len(ids), np.int8)
        for mark, parts in ((ANSWER, document.answers), (CIRCLE, (document.circle,))):
            if any(parts):
                marks[len(begin) : len(begin) + len(encoding.ids)][_inside(text, parts, encoding.offsets)] = mark
        encoded.append(Encoded(ids, marks))
    return encoded


def _written(document: Document, tokenizer: Any) -> str:
    """Returns a document's text, of a chat by the template."""
    if not document.messages:
        return document.text
    text = tokenizer.apply_chat_template(document.messages, tokenize=False)
    reply = document.messages[-1]["content"].strip()  # Templates strip some or all of what surrounds it.
    if document.complete:
        return text
    if (begins := text.rfind(reply)) < 0:
        raise ValueError(f"the chat template must write a reply as it is; it does not write {reply[:60]!r} …")
    return text[: begins + len(reply)]


def _inside(text: str, parts: Sequence[str], offsets: Sequence[tuple[int, int]]) -> Bool[np.ndarray, "n"]:
    """Marks the tokens that overlap a part: the last one at its last place in the text, and so on backwards."""
    characters, end = np.zeros(len(text) + 1, np.int64), len(text)
    for part in reversed(parts):
        start = text.rindex(part, 0, end)
        characters[start + 1 : start + len(part) + 1], end = 1, start
    before = np.cumsum(characters)
    edges = np.array(offsets)
    return before[edges[:, 1]] > before[edges[:, 0]]


class _Writer:
    """Shards of one source and split."""

    def __init__(self, folder: Path, name: str, shard_tokens: int):
        self.folder, self.name, self.shard_tokens = folder, name, shard_tokens
        self.waiting: list[Encoded] = []
        self.waiting_tokens = 0
        self.counts: dict[str, Any] = {"documents": 0, "tokens": 0, "shards": []}

    def add(self, document: Encoded) -> None:
        self.waiting.append(document)
        self.waiting_tokens += len(document.tokens)
        if self.waiting_tokens >= self.shard_tokens:
            self.flush()

    @property
    def tokens(self) -> int:
        """Added so far."""
        return self.counts["tokens"] + self.waiting_tokens

    def flush(self) -> None:
        if not self.waiting:
            return
        shard = f"{self.name}-{len(self.counts['shards']):05d}"
        ends = np.cumsum([len(document.tokens) for document in self.waiting])
        _save(self.folder / f"{shard}.tokens.npy", np.concatenate([document.tokens for document in self.waiting]))
        _save(self.folder / f"{shard}.marks.npy", np.concatenate([document.marks for document in self.waiting]))
        _save(self.folder / f"{shard}.documents.npy", ends.astype(np.int64))
        self.counts["shards"].append(shard)
        self.counts["documents"] += len(self.waiting)
        self.counts["tokens"] += self.waiting_tokens
        self.waiting, self.waiting_tokens = [], 0


def _save(path: Path, array: np.ndarray) -> None:
    # NumPy's own saving loses the last kilobytes without a word where a disk fills up with them.
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.data)


def pack_corpus(
    corpus: Corpus, root: Path, tokenizer_path: Path, output: Path, *, shard_tokens: int = SHARD_TOKENS
) -> dict[str, Any]:
    """Writes a packed folder and returns its index, which counts each source's documents and tokens.

    Raises:
      ValueError: a source is unreadable or empty, or the folder holds no tokenizer with a token that ends texts.
      FileExistsError: `output` has something in it.
    """
    from transformers import AutoTokenizer  # Reading packed shards needs no tokenizer library.

    check_new(output)
    if not (tokenizer_path / "tokenizer.json").is_file():
        raise ValueError(f"{tokenizer_path} must hold tokenizer.json; got none")
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer in {tokenizer_path} must have an eos_token, which ends a text; got none")
    # A path that names nothing is told before hours of work on the others.
    files = {source.name: source_files(source, root) if source.paths else [] for source in corpus.sources}

    def size(text: str) -> int:
        return len(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)

    index: dict[str, Any] = {
        "tokenizer_sha256": file_sha256(tokenizer_path / "tokenizer.json"),
        "vocab_size": len(tokenizer),
        **special,
        "sources": [],
    }
    with new_directory(output, 0) as work, _progress() as progress:
        for source in corpus.sources:
            task = progress.add_task(source.name, total=None, tokens=0)
            writers = {s: _Writer(work, f"{s}-{source.name}", shard_tokens) for s in (TRAIN_SPLIT, HELD_OUT_SPLIT)}
            for group in _groups(split_documents(source, corpus, root, size)):
                for (split, _), encoded in zip(group, encode([d for _, d in group], tokenizer), strict=True):
                    writers[split].add(encoded)
                tokens = sum(writer.tokens for writer in writers.values())
                progress.update(task, advance=len(group), tokens=tokens)
            for writer in writers.values():
                writer.flush()
            index["sources"].append(
                {
                    "name": source.name,
                    "share": source.share,
                    **({"task": source.task, "lessons": source.lessons} if source.task else {}),
                    **{split: writer.counts for split, writer in writers.items()},
                    "sha256": {os.path.relpath(path, root): file_sha256(path) for path in files[source.name]},
                }
            )
        if told := [
            {"source": source.name, "file": path.name, **record}
            for source in corpus.sources
            for path in files[source.name]
            if (record := left_out_of(path)) is not None
        ]:
            index["left_out"] = told
        index["sources_sha256"] = hashlib.sha256(json.dumps(index["sources"]).encode()).hexdigest()
        (work / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return index


def _groups(items: Iterator[tuple[str, Document]]) -> Iterator[list[tuple[str, Document]]]:
    while group := list(itertools.islice(items, GROUP)):
        yield group


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description:24}"),
        TextColumn("{task.completed:>10,.0f} documents {task.fields[tokens]:>14,} tokens"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )


def main(corpus: Path, data_root: Path, tokenizer: Path, output: Path, shard_tokens: int = SHARD_TOKENS) -> None:
    """Packs the sources that a corpus file names and prints what was packed.

    Args:
      corpus: JSON file of sources; the `corpus` part of a training file serves too.
      data_root: folder that the sources' paths start from.
      tokenizer: folder of the tokenizer.
      output: folder to write; absent or empty.
      shard_tokens: tokens from which a shard is closed and the next begun.
    """
    index = pack_corpus(load_corpus(corpus), data_root, tokenizer, output, shard_tokens=shard_tokens)
    for source in index["sources"]:
        counts = source[TRAIN_SPLIT]
        print(f"{source['name']:24} {counts['documents']:>9,} documents {counts['tokens']:>12,} tokens")
    print(f"packed into {output}")


if __name__ == "__main__":
    run_program(main)
