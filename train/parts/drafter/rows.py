"""Packed rows in which, of chats, only replies are targets."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np
import tokenizers
from jaxtyping import Float32, Int64, Integer, UInt

from train.data.corpus import HELD_OUT_SPLIT, TRAIN_SPLIT
from train.data.replies import Replies, document_seed
from train.data.rows import READ, Batch, Packed, Pieces, filled_batches, mixed_pieces, packed_rows
from train.data.states import StateBatch, States, entries_of
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

    Args:
      folder, shards, length: as of `Pieces`.
      replies: how replies are told from prompts.
      only: says of a document's tokens whether it is among these; None for all documents.
      starts: where each shard's tokens begin among those of all shards; then pieces have `entries` too, the places of
        their tokens there.
    """

    def __init__(
        self,
        folder: Path,
        shards: list[str],
        length: int,
        replies: Replies,
        only: Callable[[np.ndarray], bool] | None = None,
        starts: Mapping[str, int] | None = None,
    ):
        self.pieces = Pieces(folder, shards, length)
        self.ends = [np.load(folder / f"{shard}.documents.npy") for shard in shards]
        self.shards, self.replies, self.starts = shards, replies, starts
        self.table = self.pieces.table
        if only is not None:
            documents = [[only(self._document(shard, i)) for i in range(len(e))] for shard, e in enumerate(self.ends)]
            kept = [documents[shard][self._document_at(shard, start)] for shard, start, _ in self.table.tolist()]
            self.table = self.table[np.array(kept, bool)]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        shard, start, end = self.table[index].tolist()
        begin, said = self._said(shard, self._document_at(shard, start))
        tokens = np.asarray(self.pieces.tokens[shard][start:end]).astype(np.int32)
        weights = said[start - begin + 1 : end - begin].astype(np.float32)  # Target i is token i + 1.
        found = {"tokens": tokens[:-1], "targets": tokens[1:], "weights": weights}
        if self.starts is not None:
            found["entries"] = self.starts[self.shards[shard]] + entries_of(start, end)
        return found

    def _document_at(self, shard: int, place: int) -> int:
        return int(np.searchsorted(self.ends[shard], place, side="right"))

    def _document(self, shard: int, document: int) -> np.ndarray:
        begin = self.ends[shard][document - 1] if document else 0
        return np.asarray(self.pieces.tokens[shard][begin : self.ends[shard][document]])

    def _said(self, shard: int, document: int) -> tuple[int, np.ndarray]:
        """Returns where a document begins, and marks the tokens of its replies."""
        begin = int(self.ends[shard][document - 1]) if document else 0
        tokens, marks = (x[shard][begin : self.ends[shard][document]] for x in (self.pieces.tokens, self.pieces.marks))
        seed = document_seed(shard, self.shards[shard], document)
        return begin, self.replies.marks(np.asarray(tokens), np.asarray(marks) == ANSWER, seed)

    def has_replies(self) -> bool:
        """Returns whether a document has a reply, told by what stands before it."""
        return any(map(self.replies.count, self._documents()))

    def has_endless_replies(self) -> bool:
        """Returns whether a document goes on behind a reply, and no reply of any document ends."""
        several = False
        for tokens in self._documents():
            if self.replies.ended(tokens):
                return False
            several = several or self.replies.count(tokens) > 1
        return several

    def _documents(self) -> Iterator[UInt[np.ndarray, "n"]]:
        return (self._document(shard, i) for shard, ends in enumerate(self.ends) for i in range(len(ends)))

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
      choice_share: of the held-out documents, how many choose a step and are not reported on.
      states: what the base made of the tokens; None where it reads them itself.
    """

    packed: Packed
    replies: Replies
    length: int
    batch_size: int
    choice_share: float = 0.0
    states: States | None = None

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
        batches = iter(rows.batch(self.batch_size, drop_remainder=True).map(self._batch))
        return SharedBatches(batches, share, lambda batch: int(np.count_nonzero(batch.segments)))

    def held_out(self, rows: int = 0) -> Mapping[str, Sequence[Any]]:
        """Returns at most so many held-out rows of each source in batches, 0 for all; padding fills the last."""
        return self._in_order(self._pieces(HELD_OUT_SPLIT, lambda tokens: not self._chooses(tokens)), rows)

    def choice(self, rows: int = 0) -> Mapping[str, Sequence[Any]]:
        """Returns rows of the documents that choose a step, as `held_out` does; none with a `choice_share` of 0.

        Raises:
          ValueError: no held-out document chooses, or none is left to report on.
        """
        if not self.choice_share:
            return {}
        found = self._pieces(HELD_OUT_SPLIT, self._chooses)
        both = self._pieces(HELD_OUT_SPLIT)
        pieces, of = (sum(map(len, sources.values())) for sources in (found, both))
        if not 0 < pieces < of:
            raise ValueError(
                f"{self.packed.folder} must hold held-out documents to choose a step by, and others to report on; "
                f"of {of} held-out pieces {pieces} choose: pack with a larger held_out"
            )
        return self._in_order(found, rows)

    def _chooses(self, tokens: UInt[np.ndarray, "n"]) -> bool:
        """Returns whether a held-out document chooses: all answers to one prompt do, or none."""
        return chooses(self.replies.prompt(tokens), self.choice_share)

    def _in_order(self, sources: Mapping[str, ReplyPieces], rows: int) -> Mapping[str, Sequence[Any]]:
        found = {}
        for name, pieces in sources.items():
            packed = packed_rows(grain.MapDataset.source(pieces).to_iter_dataset(), self._lengths, seed=0)
            found[name] = _Mapped(self._batch, list(filled_batches(packed, self.batch_size, rows)))
        return found

    def check_replies(self, begins: str, ends: str) -> None:
        """Refuses data in which no document that is trained on has a reply, or in which replies never end.

        Args:
          begins: the text that stands before each reply; nothing where whole texts are trained on.
          ends: the text that replies end with.

        Raises:
          ValueError: there is no such reply, or a source has chats of several and none of them ends.
        """
        sources = self._pieces(TRAIN_SPLIT).values()
        if begins and not any(pieces.has_replies() for pieces in sources):
            raise ValueError(
                f"{self.packed.folder} must hold replies to train on, behind {begins!r}; got none: set reply_begins to "
                "what stands before them, or to nothing to train on whole texts"
            )
        if begins and any(pieces.has_endless_replies() for pieces in sources):
            raise ValueError(
                f"{self.packed.folder} must hold {ends!r} behind replies, or what a user says next would be one too; "
                "got none: set reply_ends to what replies end with"
            )

    def counts(self, vocab_size: int) -> Int64[np.ndarray, "V"]:
        """Returns how often each token stands in the replies that are trained on."""
        counts = [pieces.counts(vocab_size) for pieces in self._pieces(TRAIN_SPLIT).values()]
        return np.sum([np.zeros(vocab_size, np.int64), *counts], axis=0)

    def _pieces(self, split: str, only: Callable[[np.ndarray], bool] | None = None) -> dict[str, ReplyPieces]:
        """Returns each source's pieces of some documents; sources without any are left out."""
        starts = self.states.places.starts if self.states else None
        self.packed.pieces(split, self.length)  # Refuses shards that cannot be read.
        found = {
            source["name"]: ReplyPieces(
                self.packed.folder, source[split]["shards"], self.length, self.replies, only, starts
            )
            for source in self.packed.index["sources"]
        }
        return {name: pieces for name, pieces in found.items() if len(pieces)}

    @property
    def _lengths(self) -> dict[str, int]:
        names = ("tokens", "targets", "weights", *(("entries",) if self.states else ()))
        return dict.fromkeys(names, self.length)

    def _batch(self, rows: dict[str, np.ndarray]) -> Batch | StateBatch:
        batch = as_batch(rows)
        return self.states.beside(batch, rows["entries"]) if self.states else batch


@dataclasses.dataclass(frozen=True)
class _Mapped(Sequence[Any]):
    """What a function makes of items, made whenever one is read: all batches with their states may fill the memory."""

    make: Callable[[Any], Any]
    items: list[Any]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return _Mapped(self.make, self.items[index]) if isinstance(index, slice) else self.make(self.items[index])


def chooses(tokens: Integer[np.ndarray, "n"], share: float) -> bool:
    """Returns whether a held-out document is among those that choose a step: the tokens of its prompt alone decide."""
    digest = hashlib.sha256(tokens.astype("<u4").tobytes()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < share


def commonest(counts: Int64[np.ndarray, "V"], size: int) -> Int64[np.ndarray, "size"]:
    """Returns the tokens that were counted most often, the first of equal ones, in rising order."""
    return np.sort(np.argsort(-counts, kind="stable")[:size])


def random_batch(vocab_size: int, rows: int, length: int, seed: int = 0) -> Batch:
    """Returns rows of one text of random tokens each, all of which count."""
    tokens = np.random.default_rng(seed).integers(0, vocab_size, (rows, length + 1)).astype(np.int32)
    ones = np.ones((rows, length), np.int32)
    weights: Float32[np.ndarray, "B T"] = ones.astype(np.float32)
    return Batch(tokens[:, :-1], tokens[:, 1:], np.cumsum(ones, axis=1, dtype=np.int32) - 1, ones, weights)


def as_batch(rows: dict[str, np.ndarray]) -> Batch:
    """Returns packed features as a batch."""
    return Batch(
        rows["tokens"],
        rows["targets"],
        rows["tokens_positions"],
        rows["tokens_segment_ids"],
        rows["weights"],
    )
