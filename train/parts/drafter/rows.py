"""Packed rows in which, of chats, only replies are targets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import grain
import numpy as np
import tokenizers
from jaxtyping import Float32, Int64

from train.data.corpus import HELD_OUT_SPLIT, TRAIN_SPLIT
from train.data.replies import Replies, document_seed
from train.data.rows import READ, Batch, Packed, Pieces, filled_batches, mixed_pieces, packed_rows
from train.pack import ANSWER
from train.run.batches import WHOLE, Share, SharedBatches


def replies_of(tokenizer: Path, begins: str, ends: str) -> Replies:
    """Returns how replies are told from prompts, from the texts around them and a tokenizer's folder.

    Raises:
      ValueError: the folder holds no tokenizer.
    """
    try:
        vocabulary = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    except Exception as error:  # The tokenizers library raises bare Exception.
        raise ValueError(f"{tokenizer} is not a tokenizer's folder: {error}") from error
    ids = [tuple(vocabulary.encode(text, add_special_tokens=False).ids) if text else () for text in (begins, ends)]
    return Replies(*ids, prompt_share=0.0)


class ReplyPieces:
    """A source's documents in pieces of at most `length` targets, with what each target counts: 1 in replies.

    A document without a reply and without a marked answer is one reply, its first token left out.
    """

    def __init__(self, folder: Path, shards: list[str], length: int, replies: Replies):
        self.pieces = Pieces(folder, shards, length)
        self.ends = [np.load(folder / f"{shard}.documents.npy") for shard in shards]
        self.shards, self.replies = shards, replies

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        shard, start, end = self.pieces.table[index].tolist()
        document = int(np.searchsorted(self.ends[shard], start, side="right"))
        begin, said = self._said(shard, document)
        tokens = self.pieces[index].tokens.astype(np.int32)
        weights = said[start - begin + 1 : end - begin].astype(np.float32)  # Target i is token i + 1.
        return {"tokens": tokens[:-1], "targets": tokens[1:], "weights": weights}

    def _said(self, shard: int, document: int) -> tuple[int, np.ndarray]:
        """Returns where a document begins, and marks the tokens of its replies."""
        begin = int(self.ends[shard][document - 1]) if document else 0
        tokens, marks = (x[shard][begin : self.ends[shard][document]] for x in (self.pieces.tokens, self.pieces.marks))
        seed = document_seed(shard, self.shards[shard], document)
        return begin, self.replies.marks(np.asarray(tokens), np.asarray(marks) == ANSWER, seed)

    @property
    def mean_targets(self) -> float:
        """Targets of a piece, on average."""
        return self.pieces.mean_targets

    def counts(self, vocab_size: int) -> Int64[np.ndarray, "V"]:
        """Returns how often each token stands in replies."""
        counts = np.zeros(vocab_size, np.int64)
        for shard, ends in enumerate(self.ends):
            for document in range(len(ends)):
                begin, said = self._said(shard, document)
                tokens = np.asarray(self.pieces.tokens[shard][begin : ends[document]])
                counts += np.bincount(tokens[said], minlength=vocab_size)
        return counts


@dataclasses.dataclass(frozen=True)
class ReplyRows:
    """The rows of a packed folder.

    Attributes:
      packed: the shards.
      replies: how replies are told from prompts.
      length: T, targets a row.
      batch_size: rows a batch, those of all hosts.
    """

    packed: Packed
    replies: Replies
    length: int
    batch_size: int

    def training(self, seed: int, share: Share = WHOLE) -> SharedBatches:
        """Returns batches without end, in the order that `train.data.rows.training_batches` gives documents.

        Args:
          seed: of the order.
          share: the rows of each batch that this host gets.

        Raises:
          ValueError: there is nothing to train on, or rows do not divide among the hosts.
        """
        share.check(self.batch_size)
        pieces = mixed_pieces(self.packed, self._pieces(TRAIN_SPLIT), seed)
        rows = packed_rows(pieces.to_iter_dataset(READ), self._lengths, seed)
        batches = iter(rows.batch(self.batch_size, drop_remainder=True).map(_batch))
        return SharedBatches(batches, share, lambda batch: int(np.count_nonzero(batch.segments)))

    def held_out(self, rows: int = 0) -> Mapping[str, list[Batch]]:
        """Returns at most so many held-out rows of each source in batches, 0 for all; padding fills the last."""
        found = {}
        for name, pieces in self._pieces(HELD_OUT_SPLIT).items():
            packed = packed_rows(grain.MapDataset.source(pieces).to_iter_dataset(), self._lengths, seed=0)
            found[name] = [_batch(batch) for batch in filled_batches(packed, self.batch_size, rows)]
        return found

    def counts(self, vocab_size: int) -> Int64[np.ndarray, "V"]:
        """Returns how often each token stands in the replies that are trained on."""
        counts = [pieces.counts(vocab_size) for pieces in self._pieces(TRAIN_SPLIT).values()]
        return np.sum([np.zeros(vocab_size, np.int64), *counts], axis=0)

    def _pieces(self, split: str) -> dict[str, ReplyPieces]:
        """Returns each source's pieces; sources without any are left out."""
        self.packed.pieces(split, self.length)  # Refuses shards that cannot be read.
        found = {
            source["name"]: ReplyPieces(self.packed.folder, source[split]["shards"], self.length, self.replies)
            for source in self.packed.index["sources"]
        }
        return {name: pieces for name, pieces in found.items() if len(pieces)}

    @property
    def _lengths(self) -> dict[str, int]:
        return dict.fromkeys(("tokens", "targets", "weights"), self.length)


def commonest(counts: Int64[np.ndarray, "V"], size: int) -> Int64[np.ndarray, "size"]:
    """Returns the tokens that were counted most often, the first of equal ones, in rising order."""
    return np.sort(np.argsort(-counts, kind="stable")[:size])


def random_batch(vocab_size: int, rows: int, length: int, seed: int = 0) -> Batch:
    """Returns rows of one text of random tokens each, all of which count."""
    tokens = np.random.default_rng(seed).integers(0, vocab_size, (rows, length + 1)).astype(np.int32)
    ones = np.ones((rows, length), np.int32)
    weights: Float32[np.ndarray, "B T"] = ones.astype(np.float32)
    return Batch(tokens[:, :-1], tokens[:, 1:], np.cumsum(ones, axis=1, dtype=np.int32) - 1, ones, weights)


def _batch(rows: dict[str, np.ndarray]) -> Batch:
    return Batch(
        rows["tokens"],
        rows["targets"],
        rows["tokens_positions"],
        rows["tokens_segment_ids"],
        rows["weights"],
    )
