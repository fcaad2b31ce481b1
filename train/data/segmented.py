"""A packed folder with the place of every token in its group, written so that a run may be cut off at any moment."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float32, UInt8
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from jax_smash.checkpoints.directory import check_new
from jax_smash.sharding import mesh_of, put
from train.data.corpus import HELD_OUT_SPLIT, TRAIN_SPLIT
from train.data.group_counts import GroupCounts, plot_groups
from train.data.replies import Replies, document_seed, may_join
from train.data.rows import Packed
from train.data.segmenter import ByEntropy, segment_rows
from train.data.windows import WindowBatch, batches_of, document_chunks, windows_of
from train.pack import ANSWER, INDEX

SPLITS = (TRAIN_SPLIT, HELD_OUT_SPLIT)
PLACES = "places"
"""Ending of the files that hold, a byte a token, its place in its group."""

PROGRESS, PLOT = "progress.json", "groups.png"
STATISTICS = "statistics"
"""In an index's `segmentation`: what groups are like, beside how they were made."""

CHUNK_TOKENS = 2**18
"""Tokens after which a run that is cut off goes on, about. The fewer, the more batches are filled up with padding."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """How documents are read: windows of `length` tokens at most, about `batch_tokens` at once, prompts unfused."""

    length: int
    batch_tokens: int
    replies: Replies
    chunk_tokens: int = CHUNK_TOKENS

    def __post_init__(self) -> None:
        if self.length < 4 or self.batch_tokens < 1 or self.chunk_tokens < 1:
            raise ValueError(
                "length must be at least 4, batch_tokens and chunk_tokens at least 1; "
                f"got {self.length}, {self.batch_tokens}, {self.chunk_tokens}"
            )


class _Run:
    """The folder of a run that is under way, hidden beside its output, and how far it has come."""

    def __init__(self, output: Path, settings: dict[str, Any], *, resume: bool):
        self.output = check_new(output)
        self.folder = self.output.with_name(f".{self.output.name}.part")
        self.settings = json.loads(json.dumps(settings))
        self.done: dict[str, int] = {}
        self.counts: dict[str, Any] = {}
        if not (self.folder / PROGRESS).exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        if not resume:
            raise ValueError(f"{self.folder} holds an unfinished run; resume it, or remove it")
        state = json.loads((self.folder / PROGRESS).read_text(encoding="utf-8"))
        begun = state["settings"]
        # Some settings are there only where they were given.
        if differing := [n for n in {**self.settings, **begun} if self.settings.get(n) != begun.get(n)]:
            name = differing[0]
            raise ValueError(f"{self.folder} was begun with {name} {begun.get(name)}; got {self.settings.get(name)}")
        self.done, self.counts = state["done"], state["counts"]

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f"{PROGRESS}.tmp"
        temporary.write_text(json.dumps({"settings": self.settings, "done": self.done, "counts": self.counts}))
        os.replace(temporary, self.folder / PROGRESS)

    def places(self, shard: str, tokens: int) -> np.memmap:
        """Returns the shard's places in a file, as far as they were made."""
        path = self.folder / f"{shard}.{PLACES}.npy"
        if self.done.get(shard) and path.exists():
            return np.lib.format.open_memmap(path, mode="r+")
        self.done[shard] = 0
        return np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(tokens,))

    def finish(self, index: dict[str, Any]) -> None:
        (self.folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
        os.replace(self.folder, self.output)
        (self.output / PROGRESS).unlink()


def segmented_before(output: Path, settings: dict[str, Any]) -> bool:
    """Whether a folder holds all that a run with these settings makes; what decides the result is as in its index."""
    if not (output / INDEX).is_file():
        return False
    found = json.loads((output / INDEX).read_text(encoding="utf-8")).get("segmentation", {})
    if {name: value for name, value in found.items() if name != STATISTICS} != json.loads(json.dumps(settings)):
        return False
    (output / PROGRESS).unlink(missing_ok=True)  # Of a run that was cut off when all was in its place.
    return True


def segment_packed(
    packed: Packed,
    segmenter: ByEntropy,
    params: Any,
    reading: Reading,
    output: Path,
    *,
    settings: dict[str, Any],
    resume: bool = False,
) -> dict[str, Any]:
    """Writes a segmented folder and returns its index, whose `segmentation` says how groups were made and counts them.

    Args:
      packed: what is segmented.
      segmenter: how groups are made.
      params: parameters by role, for the segmenter; where they lie on a mesh, rows are divided over it.
      reading: how documents are read.
      output: folder to write; absent or empty.
      settings: what decides the result; a run is resumed with the same alone, and they are kept in the index.
      resume: go on with a run that was cut off; without one, begin.

    Raises:
      ValueError: there are no documents; a run was cut off and `resume` is False, or its settings were others.
      FileExistsError: `output` has something in it.
    """
    try:
        parts = [(source["name"], split, source[split]) for source in packed.index["sources"] for split in SPLITS]
        total = sum(part["tokens"] for _, _, part in parts)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{packed.folder} cannot be read as packed data: {error!r}") from error
    if not total:
        raise ValueError(f"{packed.folder} must hold documents to segment; got none")
    run = _Run(output, settings, resume=resume)
    run.save()
    with _progress() as progress:
        task = progress.add_task("segment", total=total)
        for name, split, part in parts:
            counts = GroupCounts(segmenter.micro_steps, run.counts.get(f"{split}-{name}"))
            for number, shard in enumerate(part["shards"]):
                shard_run = _Shard(packed.folder, shard, number, segmenter, params, reading, mesh_of(params))
                for tokens in shard_run.segment(run, counts, f"{split}-{name}"):
                    progress.update(task, advance=tokens, description=name)
    made = {key: GroupCounts(segmenter.micro_steps, fields) for key, fields in run.counts.items()}
    for _, _, part in parts:
        for shard in part["shards"]:
            for kind in ("tokens", "marks", "documents"):
                shutil.copyfile(packed.folder / f"{shard}.{kind}.npy", run.folder / f"{shard}.{kind}.npy")
    plot_groups(made, run.folder / PLOT, title=f"groups by {settings['rule']}, up to {segmenter.micro_steps} tokens")
    statistics = {
        key: count.fields | {"tokens_a_group": count.tokens_a_group, "tokens_a_slot": count.tokens_a_slot}
        for key, count in made.items()
    }
    index = packed.index | {"segmentation": run.settings | {STATISTICS: statistics}}
    run.finish(index)
    return index


@dataclasses.dataclass
class _Shard:
    """One shard that is being segmented."""

    folder: Path
    name: str
    number: int
    segmenter: ByEntropy
    params: Any
    reading: Reading
    mesh: Mesh | None

    def segment(self, run: _Run, counts: GroupCounts, key: str) -> Iterator[int]:
        """Segments the documents that are left, a chunk at a time; yields the tokens of each, those done before too."""
        tokens, marks = (
            np.load(self.folder / f"{self.name}.{kind}.npy", mmap_mode="r") for kind in ("tokens", "marks")
        )
        ends = np.load(self.folder / f"{self.name}.documents.npy")
        if not tokens.shape == marks.shape == (int(ends[-1]),):
            raise ValueError(
                f"{self.folder / self.name} must hold {int(ends[-1])} tokens and marks: {tokens.shape}, {marks.shape}"
            )
        places = run.places(self.name, len(tokens))
        for first, last in document_chunks(ends, self.reading.chunk_tokens):
            begin, end = int(ends[first - 1]) if first else 0, int(ends[last - 1])
            if first >= run.done[self.name]:
                edges = [begin, *ends[first:last].tolist()]
                part, entropy, replies = self._chunk(tokens, marks, edges, first)
                places[begin:end] = part
                counts.add(part, entropy, replies)
                places.flush()
                run.done[self.name], run.counts[key] = last, counts.fields
                run.save()
            yield end - begin

    def _chunk(
        self, tokens: np.ndarray, marks: np.ndarray, edges: list[int], first: int
    ) -> tuple[UInt8[np.ndarray, "n"], Float32[np.ndarray, "n"], Bool[np.ndarray, "n"]]:
        """Returns places, entropies and marks of replies of some documents side by side."""
        begin, documents = edges[0], list(itertools.pairwise(edges))
        seeds = [document_seed(self.number, self.name, first + i) for i in range(len(documents))]
        replies = np.concatenate(
            [
                self.reading.replies.marks(np.asarray(tokens[a:b]), np.asarray(marks[a:b]) == ANSWER, seed)
                for (a, b), seed in zip(documents, seeds, strict=True)
            ]
        )
        joins = may_join(replies)
        place, entropy = np.zeros(len(replies), np.uint8), np.zeros(len(replies), np.float32)
        windows = [window for a, b in documents for window in windows_of(a, b, self.reading.length)]
        for batch in batches_of(windows, self.reading.length, self.reading.batch_tokens):
            rows = (put(x, self.mesh, "batch") for x in _rows(batch, tokens, joins, begin))
            made = segment_rows(self.segmenter, self.params, *rows)
            for window, of_row, nats in zip(batch.windows, *map(np.asarray, made), strict=False):
                own = slice(window.own - begin, window.end - begin)
                place[own] = of_row[window.own - window.start : window.end - window.start]
                entropy[own] = nats[window.own - window.start : window.end - window.start]
        return place, entropy, replies


def _rows(batch: WindowBatch, tokens: np.ndarray, joins: Bool[np.ndarray, "n"], begin: int) -> tuple[Any, Any, Any]:
    """Returns a batch's tokens, their number a row, and which may join; a window's own tokens begin a group."""
    ids = np.zeros((batch.rows, batch.width), np.int32)
    free = np.zeros((batch.rows, batch.width), bool)
    length = np.zeros(batch.rows, np.int32)
    for i, window in enumerate(batch.windows):
        length[i] = window.end - window.start
        ids[i, : length[i]] = tokens[window.start : window.end]
        free[i, window.own - window.start + 1 : length[i]] = joins[window.own + 1 - begin : window.end - begin]
    return jnp.asarray(ids), jnp.asarray(length), jnp.asarray(free)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description:24}"),
        BarColumn(),
        TextColumn("{task.completed:>14,.0f} tokens"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True),
    )
