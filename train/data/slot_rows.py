"""Batches of rows of slots, from segmented shards, in an order that a seed decides and a run can take up again."""

from __future__ import annotations

import functools
from typing import NamedTuple

import grain
import numpy as np
from jaxtyping import Bool, Float32, Int32

from train.data.corpus import HELD_OUT_SPLIT, TRAIN_SPLIT
from train.data.rows import READ, filled_batches, mixed_pieces, packed_rows, weights_of
from train.data.slot_pieces import Room, Segmented, SlotPiece
from train.run.batches import WHOLE, Share, SharedBatches


class SlotBatch(NamedTuple):
    """Rows of slots ready for a training step; `jax_smash.smash.slots.Slots` says what most fields are.

    `spoken` marks the groups of replies, which a model says, and `cut` those that end where chance ended them, not the
    segmentation. `further` lists each row's slots that a group of two or more tokens follows, -1 behind them: what the
    micro-step decoder is trained on. If asked for, single tokens of replies are among them.
    """

    count: Int32[np.ndarray, "B S"]  # type: ignore[assignment]  # In place of a tuple's method.
    tokens: Int32[np.ndarray, "B S J"]
    position: Int32[np.ndarray, "B S"]
    segments: Int32[np.ndarray, "B S"]
    weights: Float32[np.ndarray, "B S J"]
    spoken: Bool[np.ndarray, "B S"]
    cut: Bool[np.ndarray, "B S"]
    further: Int32[np.ndarray, "B M"]


def tokens_of(batch: SlotBatch) -> int:
    """Returns how many tokens a batch's slots hold."""
    return int(batch.count.sum())


def slot_batches(
    segmented: Segmented,
    *,
    room: Room,
    micro_steps: int,
    batch_size: int,
    seed: int,
    answer_weight: float = 1.0,
    cut_share: float = 0.0,
    unfused_share: float = 0.0,
    singles: bool = False,
    share: Share = WHOLE,
) -> SharedBatches:
    """Returns batches without end, drawn as `train.data.rows.training_batches` draws them.

    Args:
      segmented: the shards.
      room: of a row.
      micro_steps: J, places of a slot.
      batch_size: rows a batch, those of all hosts.
      seed: of the order.
      answer_weight: what a target counts that belongs to a document's answer; others count 1, and what goes in circles
        nothing.
      cut_share: of the tokens that share a slot with the one before them, how many begin a group after all, drawn anew
        each time that they are read.
      unfused_share: of documents, how many have groups of one token alone up to some place, as prompts have, as far as
        a row has room; both are drawn likewise.
      singles: the micro-step decoder also reads replies' groups of one token, as many as leave a document no more than
        its slots' share of a row's room.
      share: the rows of each batch that this host gets.

    Raises:
      ValueError: there is nothing to train on, or rows do not divide among the hosts.
    """
    share.check(batch_size)
    mixed = mixed_pieces(segmented, segmented.slot_pieces(TRAIN_SPLIT, room), seed)
    if cut_share or unfused_share:
        cut = functools.partial(_cut, room=room, share=cut_share, unfused=unfused_share)
        mixed = mixed.random_map(cut, seed=seed)
    features = mixed.map(
        functools.partial(_features, room=room, micro_steps=micro_steps, answer=answer_weight, singles=singles)
    )
    rows = packed_rows(features.to_iter_dataset(READ), _lengths(room), seed)
    return SharedBatches(iter(rows.batch(batch_size, drop_remainder=True).map(_batch)), share, tokens_of)


def held_out_slot_batches(
    segmented: Segmented, *, room: Room, micro_steps: int, batch_size: int, rows: int = 0
) -> dict[str, list[SlotBatch]]:
    """Returns each source's held-out rows in batches, the last one filled with padding.

    Args:
      segmented: the shards.
      room: of a row.
      micro_steps: J, places of a slot.
      batch_size: rows a batch.
      rows: at most so many of each source; 0 for all.
    """
    batches = {}
    for name, pieces in segmented.slot_pieces(HELD_OUT_SPLIT, room).items():
        documents = grain.MapDataset.source(pieces).map(
            functools.partial(_features, room=room, micro_steps=micro_steps, answer=1.0)
        )
        found = packed_rows(documents.to_iter_dataset(), _lengths(room), seed=0)
        batches[name] = [_batch(batch) for batch in filled_batches(found, batch_size, rows)]
    return batches


def _cut(piece: SlotPiece, rng: np.random.Generator, *, room: Room, share: float, unfused: float) -> SlotPiece:
    """Returns a piece of shorter groups, no more of them than a row has room for; its first group stays whole.

    By the chance `unfused` groups are cut into single tokens up to a place anywhere in it, while there is room.
    """
    places = piece.places
    begins = places == 0
    sizes = np.diff(np.append(np.flatnonzero(begins), len(places)))
    joined = np.flatnonzero(~begins & (np.arange(len(places)) >= sizes[0]))
    slots, further = room.slots - len(sizes), room.further - np.count_nonzero(sizes[1:] > 1)
    begin = rng.integers(len(places) + 1) if unfused and rng.random() < unfused else 0
    # No more groups of several tokens than there were, so that their room does not matter.
    early = joined[joined < begin][: max(0, slots)]
    late = rng.permutation(joined[(joined >= begin) & (rng.random(len(joined)) < share)])
    drawn = np.append(early, late[: max(0, min(slots - len(early), further))])
    cut = np.zeros(len(places), bool)
    cut[drawn] = True
    index = np.arange(len(places))
    places = index - np.maximum.accumulate(np.where(begins | cut, index, 0))
    return piece._replace(places=places.astype(np.uint8), cut=cut)


def _features(
    piece: SlotPiece, *, room: Room, micro_steps: int, answer: float, singles: bool = False
) -> dict[str, np.ndarray]:
    """Returns a piece as slots, and the slots of it that the micro-step decoder reads."""
    begins = piece.places == 0
    slot = np.cumsum(begins) - 1
    count = np.bincount(slot).astype(np.int32)
    tokens = np.zeros((len(count), micro_steps), np.int32)
    weights = np.zeros((len(count), micro_steps), np.float32)
    tokens[slot, piece.places] = piece.tokens
    weights[slot, piece.places] = weights_of(piece.marks, answer=answer, circle=0.0)
    # Of each token nothing but that it takes room.
    read = {} if room.read is None else {"read": np.zeros(len(piece.tokens), np.int8)}
    return read | {
        "tokens": tokens,
        "count": count,
        # Of a group's last token.
        "position": np.cumsum(count, dtype=np.int32) - 1,
        "weights": weights,
        "spoken": piece.replies[begins],
        # By the token that begins the next one.
        "cut": np.append(piece.cut[begins][1:], False),
        "further": _further(count, piece.replies[begins] & singles, room),
    }


def _further(count: Int32[np.ndarray, "S"], singles: Bool[np.ndarray, "S"], room: Room) -> Int32[np.ndarray, "M"]:
    """Returns the slots that a group of several tokens follows, and evenly chosen ones that one of `singles` does."""
    several = np.flatnonzero(count[1:] > 1)
    alone = np.flatnonzero((count[1:] == 1) & singles[1:])
    wanted = min(len(alone), max(0, room.further * len(count) // room.slots - len(several)))
    chosen = alone[np.linspace(0, len(alone), wanted, endpoint=False).astype(int)]
    return np.sort(np.append(several, chosen)).astype(np.int32)


def _lengths(room: Room) -> dict[str, int]:
    slots = ("tokens", "count", "position", "weights", "spoken", "cut")
    read = {} if room.read is None else {"read": room.read}
    return dict.fromkeys(slots, room.slots) | {"further": room.further} | read


def _batch(rows: dict[str, np.ndarray]) -> SlotBatch:
    segments, of_further = rows["tokens_segment_ids"], rows["further_segment_ids"]
    row, column = np.nonzero((rows["tokens_positions"] == 0) & (segments > 0))
    begins = np.zeros((len(segments), segments.max(initial=0) + 1), np.int32)
    begins[row, segments[row, column]] = column
    further = rows["further"] + np.take_along_axis(begins, of_further, axis=1)
    return SlotBatch(
        count=rows["count"],
        tokens=rows["tokens"],
        position=rows["position"],
        segments=segments,
        weights=rows["weights"],
        spoken=rows["spoken"],
        cut=rows["cut"],
        further=np.where(of_further > 0, further, -1).astype(np.int32),
    )
