"""Batches of packed rows, from tokenised shards, in an order that a seed decides and a run can take up again."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import grain
import numpy as np
from grain.experimental import FirstFitPackIterDataset
from jaxtyping import Float32, Int8, Int32, Int64

from train.pack import ANSWER, CIRCLE, INDEX, file_sha256
from train.run.batches import WHOLE, Share, SharedBatches
from train.run.program import reason

BINS = 256
"""Rows filled at once: the more, the less of a row stays empty."""

READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=64)
"""How pieces are read while a step is made."""


class Batch(NamedTuple):
    """Rows ready for a training step.

    `positions` restart at 0 with each document. `segments` number a row's documents from 1, padding being 0:
    attention stays within a segment. `weights` is what a target counts, 0 in padding and below 0 where it
    should not follow.
    """

    tokens: Int32[np.ndarray, "B T"]
    targets: Int32[np.ndarray, "B T"]
    positions: Int32[np.ndarray, "B T"]
    segments: Int32[np.ndarray, "B T"]
    weights: Float32[np.ndarray, "B T"]


class Piece(NamedTuple):
    """A document, or a part of one that is longer than a row; `marks` as in `train.pack.Encoded`."""

    tokens: np.ndarray
    marks: np.ndarray


class Pieces:
    """A source's documents, cut into pieces of at most `length` targets; random access over memory-mapped shards."""

    def __init__(self, folder: Path, shards: list[str], length: int):
        self.length = length
        self.tokens = [np.load(folder / f"{shard}.tokens.npy", mmap_mode="r") for shard in shards]
        self.marks = [np.load(folder / f"{shard}.marks.npy", mmap_mode="r") for shard in shards]
        ends = [np.load(folder / f"{shard}.documents.npy") for shard in shards]
        for name, tokens, marks, last in zip(shards, self.tokens, self.marks, ends, strict=True):
            expected = int(last[-1]) if len(last) else 0
            if not tokens.shape == marks.shape == (expected,):
                raise ValueError(
                    f"{folder / name} must hold {expected} tokens; got {tokens.shape} and marks of {marks.shape}"
                )
        # Each row: shard, start, end.
        tables = [self._table(i, rows) for i, rows in enumerate(ends)]
        self.table: Int64[np.ndarray, "n 3"] = np.concatenate([np.zeros((0, 3), np.int64), *tables])

    def _table(self, shard: int, ends: Int64[np.ndarray, "d"]) -> Int64[np.ndarray, "n 3"]:
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        counts = np.maximum(1, -(-(ends - starts - 1) // self.length))
        document = np.repeat(np.arange(len(ends)), counts)
        number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
        start = starts[document] + number * self.length
        # A piece begins with the last token of the one before, so that each token but the first is a target once.
        end = np.minimum(start + self.length + 1, ends[document])
        return np.stack([np.full_like(start, shard), start, end], axis=1)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Piece:
        shard, start, end = self.table[index].tolist()
        return Piece(np.asarray(self.tokens[shard][start:end]), np.asarray(self.marks[shard][start:end]))

    @property
    def mean_targets(self) -> float:
        """Targets of a piece, on average."""
        return float((self.table[:, 2] - self.table[:, 1] - 1).mean())


class Drawn(Protocol):
    """A source's pieces, drawn from at random."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, index: int) -> Any:
        """Returns one."""

    @property
    def mean_targets(self) -> float:
        """Targets of a piece, on average."""


class Packed:
    """A folder made by `train.pack`.

    Args:
      folder: where the shards are.
      tokenizer: folder of the tokenizer that the model uses.

    Raises:
      ValueError: the folder cannot be read, or was packed with another tokenizer.
    """

    def __init__(self, folder: Path, tokenizer: Path):
        try:
            self.folder, self.index = folder, json.loads((folder / INDEX).read_text())
            expected, actual = self.index["tokenizer_sha256"], file_sha256(tokenizer / "tokenizer.json")
            self.shares = {source["name"]: source["share"] for source in self.index["sources"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder} cannot be read as packed data: {reason(error)}") from error
        if actual != expected:
            raise ValueError(f"{folder} was packed with the tokenizer of hash {expected}; {tokenizer} has {actual}")

    def pieces(self, split: str, length: int) -> dict[str, Pieces]:
        """Returns each source's pieces; sources without any are left out.

        Raises:
          ValueError: a shard is missing or does not fit the index.
        """
        try:
            found = {s["name"]: Pieces(self.folder, s[split]["shards"], length) for s in self.index["sources"]}
        except (OSError, KeyError, EOFError, ValueError) as error:
            raise ValueError(f"{self.folder} cannot be read as packed data: {reason(error)}") from error
        return {name: pieces for name, pieces in found.items() if len(pieces)}


def training_batches(
    packed: Packed,
    *,
    length: int,
    batch_size: int,
    seed: int,
    answer_weight: float = 1.0,
    circle_weight: float = 1.0,
    share: Share = WHOLE,
) -> SharedBatches:
    """Returns batches without end. Its `get_state` and `set_state` say where it stands and put it there.

    Each source is shuffled anew in each of its epochs, and sources are drawn from in proportion to their shares. The
    seed and the number of a batch decide its rows, whatever the number of hosts.

    Args:
      packed: the shards.
      length: T, targets a row.
      batch_size: rows a batch, those of all hosts.
      seed: of the order.
      answer_weight: what a target counts that belongs to a document's answer; others count 1.
      circle_weight: what a target counts that goes in circles, by how unlikely it is.
      share: the rows of each batch that this host gets.

    Raises:
      ValueError: there is nothing to train on, or rows do not divide among the hosts.
    """
    share.check(batch_size)
    mixed = mixed_pieces(packed, packed.pieces("train", length), seed)
    features = mixed.map(functools.partial(_features, answer=answer_weight, circle=circle_weight))
    rows = packed_rows(features.to_iter_dataset(READ), _lengths(length), seed)
    batches = iter(rows.batch(batch_size, drop_remainder=True).map(_batch))
    return SharedBatches(batches, share, lambda batch: int(np.count_nonzero(batch.segments)))


def mixed_pieces(packed: Packed, sources: Mapping[str, Drawn], seed: int) -> grain.MapDataset:
    """Returns pieces without end: each source shuffled anew in each of its epochs, sources by their shares of targets.

    Raises:
      ValueError: there are no pieces.
    """
    if not sources:
        raise ValueError(f"{packed.folder} must hold documents to train on; got none")
    shuffled = [
        grain.MapDataset.source(pieces).seed(seed + number).shuffle().repeat()
        for number, pieces in enumerate(sources.values())
    ]
    # Sources are mixed piece by piece, shares are of tokens.
    weights = [packed.shares[name] / pieces.mean_targets for name, pieces in sources.items()]
    return grain.MapDataset.mix(shuffled, weights=[weight / math.fsum(weights) for weight in weights])


def held_out_batches(packed: Packed, *, length: int, batch_size: int, rows: int = 0) -> dict[str, list[Batch]]:
    """Returns each source's held-out rows in batches, all targets counting 1 but those in circles, which count nothing.

    The last batch is filled with padding.

    Args:
      packed: the shards.
      length: T, targets a row.
      batch_size: rows a batch.
      rows: at most so many of each source; 0 for all.
    """
    batches = {}
    for name, pieces in packed.pieces("held_out", length).items():
        documents = grain.MapDataset.source(pieces).map(functools.partial(_features, answer=1.0, circle=0.0))
        found = packed_rows(documents.to_iter_dataset(), _lengths(length), seed=0)
        batches[name] = [_batch(batch) for batch in filled_batches(found, batch_size, rows)]
    return batches


def filled_batches(rows: Iterable[dict[str, np.ndarray]], batch_size: int, most: int) -> list[dict[str, np.ndarray]]:
    """Returns at most so many rows (0 for all) in batches, the last filled with zeros."""
    found = list(itertools.islice(rows, most or None))
    found += [{key: np.zeros_like(value) for key, value in found[0].items()}] * (-len(found) % batch_size)
    return [
        {key: np.stack([row[key] for row in found[i : i + batch_size]]) for key in found[0]}
        for i in range(0, len(found), batch_size)
    ]


def weights_of(marks: Int8[np.ndarray, "n"], *, answer: float, circle: float) -> Float32[np.ndarray, "n"]:
    """Returns what tokens count as targets, by their marks: 1 where they have none."""
    of_mark = np.ones(3, np.float32)
    of_mark[[ANSWER, CIRCLE]] = answer, -circle
    return of_mark[marks]


def packed_rows(documents: grain.IterDataset, lengths: Mapping[str, int], seed: int) -> grain.IterDataset:
    """Returns documents' features side by side in rows, of so many entries each; see `FirstFitPackIterDataset`."""
    return FirstFitPackIterDataset(
        documents, length_struct=dict(lengths), num_packing_bins=BINS, shuffle_bins=True, seed=seed
    )


def _features(piece: Piece, *, answer: float, circle: float) -> dict[str, np.ndarray]:
    tokens = piece.tokens.astype(np.int32)
    weights = weights_of(piece.marks, answer=answer, circle=circle)[1:]  # Target i is token i + 1.
    return {"tokens": tokens[:-1], "targets": tokens[1:], "weights": weights}


def _lengths(length: int) -> dict[str, int]:
    return {"tokens": length, "targets": length, "weights": length}


def _batch(rows: dict[str, np.ndarray]) -> Batch:
    return Batch(
        rows["tokens"],
        rows["targets"],
        rows["tokens_positions"],
        rows["tokens_segment_ids"],
        rows["weights"],
    )
