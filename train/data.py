"""Text and chats to packed rows of tokens, and rows to batches.

    python -m train.data --corpus train/configs/tiny.json --data-root DATA --tokenizer TOKENIZER --output PACKED

A packed folder (`train.npy`, `held_out.npy`, `index.json`) and the tokenizer's folder are all that training needs.
"""

import dataclasses
import glob
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro
from jaxtyping import Float32, Int32, UInt16

# UTF-8 once misread as Windows-1252 comes first: it holds characters that the later pairs would change.
_REPLACED = {
    "â€œ": '"', "â€™": "'", "â€˜": "'", 'â€"': " -- ", "â€": '"', "“": '"', "”": '"', "„": '"', "‘": "'", "’": "'",
    "´": "'", "–": "-", "—": "--", "―": "--", "…": "...", "\u00a0": " ", "\u2003": " ", "\u2029": "\n\n",
    "\ufeff": "", "\ufffd": "", "\r\n": "\n",
}  # fmt: skip
_DROPPED = re.compile(
    r"<\|[a-z_]+\|>"  # A special token written out in a text would end the document or forge a turn.
    r"|\[(?:Illustration|Drawing|Hieroglyphics)[^\]]*\]|\[\d+\]|^[ \t]*(?:\*[ \t]*)+$|^[ \t]*_{4,}[ \t]*$",
    re.MULTILINE,
)


@dataclasses.dataclass(frozen=True)
class Source:
    """One kind of text: files, folders of `.jsonl` and `.txt` files, or patterns, relative to the data root.

    `weight` is the copies of each document in an epoch; its fraction keeps that share of the documents: 2.5 takes
    all of them twice and half of them a third time, 0.33 a third of them once.
    """

    name: str
    paths: tuple[str, ...]
    weight: float = 1.0


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Sources and how they are cut: `length` in tokens, `held_out` a share of the documents, `passage` in characters.

    A text longer than `passage` is cut at blank lines into passages, each a document of its own.
    """

    sources: tuple[Source, ...]
    vocab_size: int = 4096
    length: int = 512
    held_out: float = 0.01
    passage: int = 8000

    def __post_init__(self):
        positive = all(source.weight > 0 for source in self.sources)
        if not (0 <= self.held_out < 1 and self.length > 1 and self.passage > 0 and positive and self.sources):
            raise ValueError(f"expected 0 <= held_out < 1, length > 1, passage > 0, sources of weight > 0; got {self}")


class Document(NamedTuple):
    """One text, or one chat (`{"role", "content"}` each); incomplete where the text goes on in another passage."""

    text: str = ""
    messages: tuple[dict[str, str], ...] = ()
    complete: bool = True


class Packed(NamedTuple):
    """One split's rows, whose last token is the next row's first, and the folder's index."""

    rows: UInt16[np.ndarray, "R T1"]
    index: dict[str, Any]


class Batch(NamedTuple):
    """Rows ready for a training step.

    `positions` restart at 0 with each document and each row. `segments` number a row's documents from 1, padding
    being 0: attention stays within a segment. `weights` is 1 where the target belongs to the input's document, else 0.
    """

    tokens: Int32[np.ndarray, "B T"]
    targets: Int32[np.ndarray, "B T"]
    positions: Int32[np.ndarray, "B T"]
    segments: Int32[np.ndarray, "B T"]
    weights: Float32[np.ndarray, "B T"]


def load_corpus(path: Path) -> Corpus:
    """Returns the corpus of a JSON file, which may stand in it as `corpus`, beside what `train.base` reads.

    Raises ValueError where a field is missing, unknown or out of range.
    """
    try:
        fields = json.loads(Path(path).read_text(encoding="utf-8"))
        fields = fields.get("corpus", fields)
        sources = tuple(Source(**{**source, "paths": tuple(source["paths"])}) for source in fields.pop("sources"))
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
    """Returns the source's files in order; raises ValueError where a path names none."""
    files = []
    for path in (root / name for name in source.paths):
        matches = path.iterdir() if path.is_dir() else map(Path, glob.glob(str(path)))
        matches = sorted(match for match in matches if match.suffix in (".jsonl", ".txt"))
        if not matches:
            raise ValueError(f"source {source.name!r}: expected a .jsonl or .txt file at {path}; got none")
        files += matches
    return files


def read_documents(path: Path, *, passage: int) -> Iterator[Document]:
    """Yields the documents of a `.txt` file, or of a `.jsonl` file of texts, dialogues or prompts with responses.

    A line is `{"text"}`, `{"turns": [user, assistant, ...]}` or `{"prompt", "response"}`; other keys are ignored. A
    dialogue's closing user turn, which has no reply, is dropped, and so is a document that cleaning leaves empty.
    Raises ValueError where the file is not UTF-8 text or a line is none of these; file and line are named.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as UTF-8 text: {error}") from error
    if path.suffix == ".txt":
        yield from _passages(clean(content), passage)
        return
    for number, line in enumerate(content.split("\n"), start=1):
        try:
            yield from _line_documents(line, passage) if line.strip() else ()
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error


def _line_documents(line: str, passage: int) -> list[Document]:
    match json.loads(line):
        case {"text": str(text)}:
            return _passages(clean(text), passage)
        case {"turns": [*turns]} if all(isinstance(turn, str) for turn in turns):
            pass
        case {"prompt": str(prompt), "response": str(response)}:
            turns = [prompt, response]
        case other:
            got = sorted(other) if isinstance(other, dict) else type(other).__name__
            raise ValueError(f"expected text, turns, or prompt and response, as strings; got {got}")
    turns = [clean(turn) for turn in turns[: len(turns) // 2 * 2]]
    messages = tuple({"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns))
    return [Document(messages=messages)] if turns and all(turns) else []


def _passages(text: str, size: int) -> list[Document]:
    target = len(text) / max(1, -(-len(text) // size))
    pieces = []
    for paragraph in text.split("\n\n") if text else ():
        if pieces and len(pieces[-1]) < target:
            pieces[-1] += "\n\n" + paragraph
        else:
            pieces.append(paragraph)
    return [Document(piece, complete=i == len(pieces)) for i, piece in enumerate(pieces, start=1)]


def read_source(source: Source, corpus: Corpus, root: Path) -> list[tuple[Document, int]]:
    """Returns the source's distinct documents, each with its copies in an epoch: 0 marks a held-out one.

    Content alone decides, so equal documents never part. Raises ValueError where no document is left to train on.
    """
    found = {}
    for document in itertools.chain(*(read_documents(p, passage=corpus.passage) for p in source_files(source, root))):
        key = document.text + json.dumps(document.messages)
        drawn, held_out = np.frombuffer(hashlib.sha256(key.encode()).digest()[:16], ">u8") / 2**64
        if copies := int(source.weight) + int(drawn < source.weight % 1):
            found[key] = document, 0 if held_out < corpus.held_out else copies
    if not any(copies for _, copies in found.values()):
        raise ValueError(f"source {source.name!r} must have a document to train on; got {len(found)} held-out ones")
    return list(found.values())


def _sha256(path: Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def encode_documents(documents: Sequence[Document], tokenizer: Any) -> list[UInt16[np.ndarray, "N"]]:
    """Returns each document's tokens between begin and end, chats by the fast Hugging Face tokenizer's template."""
    encoded, bos, eos = [], [tokenizer.bos_token_id], [tokenizer.eos_token_id]
    for start in range(0, len(documents), 1024):
        group = documents[start : start + 1024]
        texts = [tokenizer.apply_chat_template(d.messages, tokenize=False) if d.messages else d.text for d in group]
        encodings = tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        for document, ids in zip(group, (encoding.ids for encoding in encodings), strict=True):
            encoded.append(np.array((bos if ids[:1] != bos else []) + ids + eos * document.complete, np.uint16))
    return encoded


def pack_rows(documents: Sequence[UInt16[np.ndarray, "N"]], length: int, *, pad_id: int) -> UInt16[np.ndarray, "R T1"]:
    """Returns the documents end to end in rows of `length + 1` tokens, each beginning with the last token before."""
    stream = np.concatenate([np.zeros(0, np.uint16), *documents])
    count = max(0, -(-(len(stream) - 1) // length))
    stream = np.pad(stream, (0, count * length + 1 - len(stream)), constant_values=pad_id)
    return stream[np.arange(count)[:, None] * length + np.arange(length + 1)]


def pack_corpus(corpus: Corpus, root: Path, tokenizer_path: Path, output: Path) -> dict[str, Any]:
    """Writes a packed folder and returns its index, which counts each source's documents and tokens in an epoch.

    Raises ValueError where a source is unreadable or empty, or the ids do not fit 16 bits.
    """
    from transformers import AutoTokenizer  # Reading packed rows needs no tokenizer library.

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    if len({None, *special.values()}) < 4 or len(tokenizer) > 2**16:
        raise ValueError(f"expected distinct special ids and at most 65536 ids; got {special} and {len(tokenizer)}")
    splits, sources = {"train": [], "held_out": []}, []
    for source in corpus.sources:
        documents, copies = zip(*read_source(source, corpus, root), strict=True)
        parts = {"train": [], "held_out": []}
        for ids, count in zip(encode_documents(documents, tokenizer), copies, strict=True):
            parts["train" if count else "held_out"] += [ids] * max(count, 1)
        counts = {k: {"documents": len(part), "tokens": sum(map(len, part))} for k, part in parts.items()}
        files = {str(path.relative_to(root)): _sha256(path) for path in source_files(source, root)}
        sources.append({"name": source.name, "weight": source.weight, **counts, "sha256": files})
        splits = {name: documents + parts[name] for name, documents in splits.items()}
    output.mkdir(parents=True, exist_ok=True)
    index = {"tokenizer_sha256": _sha256(tokenizer_path / "tokenizer.json"), "vocab_size": len(tokenizer), **special}
    index |= {"length": corpus.length, "rows": {}, "sources": sources}
    for name, documents in splits.items():
        order = np.random.default_rng(0).permutation(len(documents))
        rows = pack_rows([documents[i] for i in order], corpus.length, pad_id=special["pad_token_id"])
        index["rows"][name] = len(rows)
        np.save(output / f"{name}.npy", rows)
    (output / "index.json").write_text(json.dumps(index, indent=2) + "\n")
    return index


def load_packed(folder: Path, tokenizer_path: Path, *, split: str = "train") -> Packed:
    """Returns a split, `train` or `held_out`; raises ValueError where it was packed with another tokenizer."""
    try:
        index = json.loads((folder / "index.json").read_text())
        rows, expected = np.load(folder / f"{split}.npy"), (index["rows"][split], index["length"] + 1)
        actual = _sha256(tokenizer_path / "tokenizer.json")
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{folder} cannot be read as packed data: {error!r}") from error
    if actual != index["tokenizer_sha256"]:
        raise ValueError(f"{folder} was packed with tokenizer {index['tokenizer_sha256']}; got {actual}")
    if rows.shape != expected or rows.dtype != np.uint16:
        raise ValueError(f"{split}.npy must be uint16 of shape {expected}; got {rows.dtype} of shape {rows.shape}")
    return Packed(rows, index)


def make_batch(rows: UInt16[np.ndarray, "B T1"], index: dict[str, Any]) -> Batch:
    """Returns the rows as inputs and targets with what separates their documents."""
    tokens, targets = rows[:, :-1].astype(np.int32), rows[:, 1:].astype(np.int32)
    begins, pad_id = tokens == index["bos_token_id"], index["pad_token_id"]
    slot = np.arange(tokens.shape[1], dtype=np.int32)
    positions = slot - np.maximum.accumulate(np.where(begins, slot, 0), axis=1)
    segments = (np.cumsum(begins, axis=1, dtype=np.int32) + ~begins[:, :1]) * (tokens != pad_id)
    weights = (segments > 0) & (targets != index["bos_token_id"]) & (targets != pad_id)
    return Batch(tokens, targets, positions, segments, weights.astype(np.float32))


def shuffled_batches(packed: Packed, batch_size: int, *, seed: int, start_step: int = 0) -> Iterator[Batch]:
    """Yields batches without end from `start_step` on, each a function of the seed and its step alone.

    Each epoch has its own order and leaves out rows that fill no batch. Raises ValueError where none is filled.
    """
    if not (steps := len(packed.rows) // batch_size):
        raise ValueError(f"batch_size must be at most the split's {len(packed.rows)} rows; got {batch_size}")
    for epoch in itertools.count(start_step // steps):
        order = np.random.default_rng((seed, epoch)).permutation(len(packed.rows))
        for step in range(max(0, start_step - epoch * steps), steps):
            yield make_batch(packed.rows[order[step * batch_size : (step + 1) * batch_size]], packed.index)


def ordered_batches(packed: Packed, batch_size: int) -> Iterator[Batch]:
    """Yields every row once, in order; the last batch is filled with padding, whose weights are 0."""
    for start in range(0, len(packed.rows), batch_size):
        rows = packed.rows[start : start + batch_size]
        padding = ((0, batch_size - len(rows)), (0, 0))
        yield make_batch(np.pad(rows, padding, constant_values=packed.index["pad_token_id"]), packed.index)


def main(corpus: Path, data_root: Path, tokenizer: Path, output: Path) -> None:
    """Packs the sources that the corpus file names, their paths starting from the data root, and prints the index."""
    print(json.dumps(pack_corpus(load_corpus(corpus), data_root, tokenizer, output), indent=2))


if __name__ == "__main__":
    tyro.cli(main)
