"""Segmented documents in pieces of whole groups, as rows of slots are packed from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int8, Int64, UInt, UInt8

from jax_smash.config import ModelConfig
from jax_smash.smash.config import SmashConfig, base_sha256
from train.data.corpus import TRAIN_SPLIT
from train.data.replies import Replies, document_seed
from train.data.rows import Packed
from train.data.segmented import PLACES
from train.pack import ANSWER
from train.run.program import reason


class SlotPiece(NamedTuple):
    """A document, or a part of one that is longer than a row, of whole groups.

    Attributes:
      tokens: ids.
      marks: as in `train.pack.Encoded`.
      places: of each token in its group; a token at 0 begins one.
      replies: marks the tokens that a model says, not those of prompts.
      cut: marks the tokens that begin a group by chance, not by the segmentation.
    """

    tokens: UInt[np.ndarray, "n"]
    marks: Int8[np.ndarray, "n"]
    places: UInt8[np.ndarray, "n"]
    replies: Bool[np.ndarray, "n"]
    cut: Bool[np.ndarray, "n"]


@dataclasses.dataclass(frozen=True)
class Room:
    """What a row has room for.

    Attributes:
      slots: S, groups of a row.
      further: groups of two or more tokens among those that are predicted.
      tokens: of a document's part: the positions that the base knows.
      read: tokens of all documents' parts, for a row that is also read token by token; None where none is.
    """

    slots: int
    further: int
    tokens: int
    read: int | None = None

    def __post_init__(self) -> None:
        if min(self.slots, self.tokens) < 2 or self.further < 1:
            raise ValueError(f"a row must have room for 2 slots, 2 tokens and a group of several; got {self}")


class SlotPieces:
    """A source's documents, cut at borders of groups into pieces that fit a row; random access over mapped shards.

    A piece begins with the last group of the one before, so that each group but a document's first is predicted once.
    """

    def __init__(self, folder: Path, shards: list[str], replies: Replies, room: Room):
        self.shards, self.replies = shards, replies
        self.tokens, self.marks, self.places = (
            [np.load(folder / f"{shard}.{kind}.npy", mmap_mode="r") for shard in shards]
            for kind in ("tokens", "marks", PLACES)
        )
        self.ends = [np.load(folder / f"{shard}.documents.npy") for shard in shards]
        for i, name in enumerate(shards):
            expected = (int(self.ends[i][-1]) if len(self.ends[i]) else 0,)
            found = [arrays[i].shape for arrays in (self.tokens, self.marks, self.places)]
            if found != [expected] * 3:
                raise ValueError(
                    f"{folder / name} must hold {expected[0]} tokens; got {found[0]}, marks of {found[1]} and places "
                    f"of {found[2]}"
                )
            if not _are_groups(np.asarray(self.places[i]), self.ends[i]):
                raise ValueError(f"{folder / name}.{PLACES}.npy must count the tokens of each group from 0")
        # Each row: shard, document, start, end.
        tables = [_table(i, np.asarray(places), self.ends[i], room) for i, places in enumerate(self.places)]
        self.table: Int64[np.ndarray, "n 4"] = np.concatenate([np.zeros((0, 4), np.int64), *tables])

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> SlotPiece:
        shard, document, start, end = self.table[index].tolist()
        begin, replies = self._replies(shard, document)
        tokens, marks, places = (np.asarray(x[shard][start:end]) for x in (self.tokens, self.marks, self.places))
        return SlotPiece(
            tokens,
            marks,
            places,
            replies[start - begin : end - begin],
            np.zeros(end - start, bool),
        )

    def _replies(self, shard: int, document: int) -> tuple[int, Bool[np.ndarray, "n"]]:
        """Returns where a document begins, and marks its replies as they were marked when it was segmented."""
        begin, end = int(self.ends[shard][document - 1]) if document else 0, int(self.ends[shard][document])
        tokens, marks = (np.asarray(arrays[shard][begin:end]) for arrays in (self.tokens, self.marks))
        return begin, self.replies.marks(tokens, marks == ANSWER, document_seed(shard, self.shards[shard], document))

    @property
    def mean_targets(self) -> float:
        """Tokens of a piece, on average."""
        return float((self.table[:, 3] - self.table[:, 2]).mean())

    def reply_counts(self, vocab_size: int) -> Int64[np.ndarray, "V"]:
        """Returns how often each token stands in replies."""
        counts = np.zeros(vocab_size, np.int64)
        for shard, ends in enumerate(self.ends):
            for document in range(len(ends)):
                begin, replies = self._replies(shard, document)
                said = np.asarray(self.tokens[shard][begin : ends[document]])[replies]
                counts += np.bincount(said, minlength=vocab_size)
        return counts


def _are_groups(places: UInt8[np.ndarray, "n"], ends: Int64[np.ndarray, "d"]) -> bool:
    """Whether places count each group's tokens, and no group reaches over a document's end."""
    joined = (places[1:] == 0) | (places[1:] == places[:-1] + 1)
    begins = places[np.concatenate([[0], ends[:-1]]).astype(np.int64)] if len(places) else places
    return bool(joined.all() and not begins.any())


def _table(
    shard: int, places: UInt8[np.ndarray, "n"], ends: Int64[np.ndarray, "d"], room: Room
) -> Int64[np.ndarray, "n 4"]:
    """Returns the pieces of a shard: each as many groups as a row has room for."""
    begins = np.flatnonzero(places == 0)
    edges = np.append(begins, len(places))  # Tokens before each group.
    several = np.concatenate([[0], np.cumsum(np.diff(edges) > 1)])  # Groups of several tokens before each group.
    last = np.searchsorted(begins, ends)
    rows = []
    for document, (start, end) in enumerate(zip([0, *last[:-1].tolist()], last.tolist(), strict=True)):
        while True:
            cut = min(
                end,
                start + room.slots,
                int(np.searchsorted(several, several[start + 1] + room.further, side="right")) - 1,
                int(np.searchsorted(edges, edges[start] + room.tokens, side="right")) - 1,
            )
            rows.append((shard, document, edges[start], edges[cut]))
            if cut == end:
                break
            start = cut - 1
    return np.array(rows, np.int64).reshape(-1, 4)


class Segmented(Packed):
    """A folder made by `train.segment`.

    Args:
      folder: where the shards are.
      tokenizer: folder of the tokenizer that the base uses.

    Raises:
      ValueError: the folder cannot be read, was not segmented, or was packed with another tokenizer.
    """

    def __init__(self, folder: Path, tokenizer: Path):
        super().__init__(folder, tokenizer)
        if "segmentation" not in self.index:
            raise ValueError(f"{folder} must be segmented by train.segment; it is packed alone")
        try:
            self.segmentation: dict[str, Any] = self.index["segmentation"]
            self.micro_steps = int(self.segmentation["micro_steps"])
            fields = self.segmentation["reading"]["replies"]
            self.replies = Replies(
                tuple(fields["begins"]),
                tuple(fields["ends"]),
                fields["prompt_share"],
                fields.get("answers_alone", False),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{folder} cannot be read as segmented data: {reason(error)}") from error

    @property
    def sha256(self) -> str:
        """Of what was packed, and how it was segmented."""
        made = {name: value for name, value in self.segmentation.items() if name != "statistics"}
        return hashlib.sha256(json.dumps([self.index["sources_sha256"], made], sort_keys=True).encode()).hexdigest()

    def check(self, base: ModelConfig, config: SmashConfig) -> None:
        """Refuses modules and a base that the groups were not made for.

        Raises:
          ValueError: groups have more tokens than the modules take, or were made by another base.
        """
        if self.micro_steps > config.micro_steps:
            raise ValueError(
                f"micro_steps must be at least the {self.micro_steps} of {self.folder}; got {config.micro_steps}"
            )
        if (actual := base_sha256(base)) != (expected := self.segmentation.get("base_sha256")):
            raise ValueError(
                f"{self.folder} was segmented by a base whose configuration has hash {expected}; got {actual}"
            )

    def slot_pieces(self, split: str, room: Room) -> dict[str, SlotPieces]:
        """Returns each source's pieces; sources without any are left out.

        Raises:
          ValueError: a shard is missing or does not fit the index.
        """
        try:
            found = {
                source["name"]: SlotPieces(self.folder, source[split]["shards"], self.replies, room)
                for source in self.index["sources"]
            }
        except (OSError, KeyError, EOFError, ValueError) as error:
            raise ValueError(f"{self.folder} cannot be read as segmented data: {reason(error)}") from error
        return {name: pieces for name, pieces in found.items() if len(pieces)}

    def reply_counts(self, vocab_size: int, room: Room) -> Int64[np.ndarray, "V"]:
        """Returns how often each token stands in the replies that are trained on."""
        counts = [pieces.reply_counts(vocab_size) for pieces in self.slot_pieces(TRAIN_SPLIT, room).values()]
        return np.sum([np.zeros(vocab_size, np.int64), *counts], axis=0)
