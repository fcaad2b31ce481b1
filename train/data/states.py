"""A base's hidden states and taps of packed documents, kept on disk for what is trained beside it.

A folder holds `states.json` and, of each packed shard, `SHARD.hidden.npy`, `SHARD.tap-N.npy` and
`SHARD.likeliest.npy`, a row for each token of the shard. The last token of a document has none: nothing is drafted
behind it. bfloat16 is kept as its 16 bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Int32, Int64, Shaped

from train.data.corpus import HELD_OUT_SPLIT, TRAIN_SPLIT
from train.data.rows import Batch, Packed
from train.run.program import reason

RECORD = "states.json"
LIKELIEST = "likeliest"
FORMAT = 1
KEPT_AS: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "bfloat16": np.dtype("<u2")}
"""NumPy's dtype of what is kept, by name."""


class StateBatch(NamedTuple):
    """A `Batch` with what the base made of its tokens.

    `hidden` is behind the final norm, `taps` are by number, `likeliest` is the token that the base predicts: None where
    it was not kept. All are 0 in padding.
    """

    tokens: Int32[np.ndarray, "B T"]
    targets: Int32[np.ndarray, "B T"]
    positions: Int32[np.ndarray, "B T"]
    segments: Int32[np.ndarray, "B T"]
    weights: Float[np.ndarray, "B T"]
    hidden: Float[np.ndarray, "B T D"]
    taps: Mapping[int, Float[np.ndarray, "B T D"]]
    likeliest: Int32[np.ndarray, "B T"] | None = None


class Stream(NamedTuple):
    """What is kept of each token in one file of a shard: the shape and the dtype of its row."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        """Of one token."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class StatesRecord:
    """What decides kept states.

    Attributes:
      base_fingerprint: of the base's weights.
      base_sha256: of the files that they were read from.
      config_sha256: of the base's configuration; empty in records that do not tell.
      packed_sha256: of what was packed.
      tokenizer_sha256: of the tokenizer that it was packed with.
      length: tokens that an entry sees at most: of a longer document each piece is read by itself.
      taps: that are kept beside the hidden states.
      products: dtype that the base computed in.
      dtype: of what is kept.
      width: D of the base.
      likeliest: whether the token that the base predicts is kept too.
    """

    base_fingerprint: str
    base_sha256: str
    packed_sha256: str
    tokenizer_sha256: str
    length: int
    taps: tuple[int, ...]
    products: str
    dtype: str
    width: int
    config_sha256: str = ""
    likeliest: bool = False
    format: int = FORMAT

    def __post_init__(self) -> None:
        object.__setattr__(self, "taps", tuple(self.taps))
        for name in ("dtype", "products"):
            if getattr(self, name) not in KEPT_AS:
                raise ValueError(f"{name} must be one of {', '.join(KEPT_AS)}; got {getattr(self, name)!r}")
        if self.format != FORMAT:
            raise ValueError(f"format must be {FORMAT}; got {self.format!r}")

    @property
    def streams(self) -> dict[str, Stream]:
        """What is kept of each token, by name."""
        vector = Stream((self.width,), KEPT_AS[self.dtype])
        vectors = dict.fromkeys(("hidden", *map(tap_name, self.taps)), vector)
        return vectors | ({LIKELIEST: Stream((), np.dtype("<i4"))} if self.likeliest else {})

    @property
    def described(self) -> str:
        """What decides them beside the base and the rows: dtypes, and whether predictions are kept."""
        products = "" if self.products == "float32" else f" of {self.products} products"
        return f"{self.dtype}{products}{' with predictions' if self.likeliest else ''}"

    @property
    def token_bytes(self) -> int:
        """Of one token in all streams."""
        return sum(stream.row_bytes for stream in self.streams.values())

    def write(self, folder: Path) -> None:
        """Writes it into a folder."""
        (folder / RECORD).write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", encoding="utf-8")


def read_record(folder: Path) -> StatesRecord:
    """Returns the record of a folder of states.

    Raises:
      FileNotFoundError: there is none, or it is not whole.
      ValueError: it is damaged.
    """
    if not (folder / RECORD).is_file():
        partial = unfinished(folder)
        hint = f"; {partial} is not whole: train.states --resume goes on" if partial.exists() else ""
        raise FileNotFoundError(f"{folder} must be a folder that train.states made; it has no {RECORD}{hint}")
    try:
        return StatesRecord(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / RECORD} cannot be read: {reason(error)}") from error


def unfinished(folder: Path) -> Path:
    """Returns where a folder of states lies until it is whole."""
    return folder.with_name(f".{folder.name}.part")


def tap_name(tap: int) -> str:
    """Returns what a tap's stream is called."""
    return f"tap-{tap}"


class Places:
    """Where the tokens of a packed folder's shards stand, one shard behind the other.

    Args:
      packed: the folder.

    Attributes:
      starts: of each shard.
      tokens: of all shards.
    """

    def __init__(self, packed: Packed):
        shards = [
            shard
            for source in packed.index["sources"]
            for split in (TRAIN_SPLIT, HELD_OUT_SPLIT)
            for shard in source[split]["shards"]
        ]
        sizes = [int(np.load(packed.folder / f"{shard}.documents.npy")[-1]) for shard in shards]
        ends = np.cumsum([0, *sizes]).tolist()
        self.sizes = dict(zip(shards, sizes, strict=True))
        self.starts: dict[str, int] = dict(zip(shards, ends, strict=False))
        self.tokens: int = ends[-1]


class States:
    """Kept states, read where rows ask for them.

    Args:
      folder: that `train.states` made.
      packed: what the rows are of.
      taps: that are asked for.

    Raises:
      FileNotFoundError, ValueError: the folder is not whole, is damaged, or has not all of these taps.
    """

    def __init__(self, folder: Path, packed: Packed, taps: Sequence[int]):
        self.record, self.places, self.taps = read_record(folder), Places(packed), tuple(taps)
        if missing := sorted({*taps} - {*self.record.taps}):
            held = ", ".join(map(str, self.record.taps)) or "none"
            raise ValueError(f"{folder} must hold tap {missing[0]} of the base; it holds {held}")
        asked = {"hidden", LIKELIEST, *map(tap_name, self.taps)}
        self._files = {
            name: [_opened(folder / f"{shard}.{name}.npy", size, stream) for shard, size in self.places.sizes.items()]
            for name, stream in self.record.streams.items()
            if name in asked
        }
        self._starts = np.array([*self.places.starts.values()], np.int64)

    def beside(self, batch: Batch, entries: Int64[np.ndarray, "B T"]) -> StateBatch:
        """Returns a batch with the states of its tokens, which stand at such places of all shards."""
        there = batch.segments > 0
        vectors = {name: self._vectors(name, entries, there) for name in self._files if name != LIKELIEST}
        taps = {tap: vectors[tap_name(tap)] for tap in self.taps}
        likeliest = self._at(LIKELIEST, entries, there) if self.record.likeliest else None
        return StateBatch(*batch, hidden=vectors["hidden"], taps=taps, likeliest=likeliest)

    def _vectors(
        self, name: str, entries: Int64[np.ndarray, "B T"], there: Bool[np.ndarray, "B T"]
    ) -> Float[np.ndarray, "B T D"]:
        made = self._at(name, entries, there)
        return made.view(jnp.bfloat16) if self.record.dtype == "bfloat16" else made

    def _at(
        self, name: str, entries: Int64[np.ndarray, "B T"], there: Bool[np.ndarray, "B T"]
    ) -> Shaped[np.ndarray, "B T ..."]:
        wanted, stream = entries[there], self.record.streams[name]
        shards = np.searchsorted(self._starts, wanted, side="right") - 1
        found = np.zeros((len(wanted), *stream.shape), stream.dtype)
        for shard in np.unique(shards):
            here = shards == shard
            found[here] = self._files[name][shard][wanted[here] - self._starts[shard]]
        made = np.zeros((*there.shape, *stream.shape), stream.dtype)
        made[there] = found
        return made


class Writer:
    """Writes states into a folder, each token's at its place.

    Args:
      folder: exists.
      record: what is kept.
      places: of the shards.
    """

    def __init__(self, folder: Path, record: StatesRecord, places: Places):
        self.record, self.places = record, places
        self._starts = np.array([*places.starts.values()], np.int64)
        self._files: dict[str, list[tuple[Any, int]]] = {name: [] for name in record.streams}
        for name, stream in record.streams.items():
            for shard, size in places.sizes.items():
                file = _begun(folder / f"{shard}.{name}.npy", (size, *stream.shape), stream.dtype)
                self._files[name].append(file)

    def write(self, batch: StateBatch, entries: Int64[np.ndarray, "B T"]) -> None:
        """Writes a batch's states; raises OSError where the disk is full."""
        there = batch.segments > 0
        wanted = entries[there]
        streams: dict[str, np.ndarray] = {"hidden": batch.hidden}
        streams |= {tap_name(tap): x for tap, x in batch.taps.items()}
        if batch.likeliest is not None:
            streams[LIKELIEST] = batch.likeliest
        # Tokens of one piece stand side by side, and the last token of a document, which has no state, parts documents.
        cuts = np.flatnonzero(np.diff(wanted) != 1) + 1
        for name, x in streams.items():
            stream = self.record.streams[name]
            rows = np.ascontiguousarray(x[there]).view(stream.dtype)
            for run, first in zip(np.split(rows, cuts), wanted[[0, *cuts]] if len(wanted) else (), strict=False):
                shard = int(np.searchsorted(self._starts, first, side="right")) - 1
                file, header = self._files[name][shard]
                file.seek(header + int(first - self._starts[shard]) * stream.row_bytes)
                file.write(run.tobytes())

    def flush(self) -> None:
        """Returns when all is on the disk."""
        for files in self._files.values():
            for file, _ in files:
                file.flush()
                os.fsync(file.fileno())

    def close(self) -> None:
        """Closes the files. What a full disk has kept from being written is lost: `flush` before tells of it."""
        for files in self._files.values():
            for file, _ in files:
                with contextlib.suppress(OSError):
                    file.close()


def _opened(path: Path, size: int, stream: Stream) -> np.ndarray:
    """Returns the rows of a file, which is not read yet.

    Raises:
      ValueError: it cannot be read, or holds something else.
    """
    expected = (size, *stream.shape)
    try:
        found = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {reason(error)}") from error
    if found.shape != expected or found.dtype != stream.dtype:
        raise ValueError(f"{path} must hold {expected} of {stream.dtype}; got {found.shape} of {found.dtype}")
    return found


def _begun(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Any, int]:
    """Returns a file of NumPy's format that is open for writing, of its whole size, and where its rows begin."""
    if not path.exists():
        with path.open("wb") as new:
            fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(new, fields)
            new.truncate(new.tell() + math.prod(shape) * dtype.itemsize)
    return path.open("r+b"), path.stat().st_size - math.prod(shape) * dtype.itemsize


def states_bytes(record: StatesRecord, places: Places) -> int:
    """Returns the bytes that states take on disk, but for a few of each file's header."""
    return places.tokens * record.token_bytes


def free_bytes(folder: Path) -> int:
    """Returns what is free where a folder is to be made."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def entries_of(start: int, end: int) -> Int[np.ndarray, "n"]:
    """Returns the places of the tokens of a piece that have states: all but its last."""
    return np.arange(start, end - 1, dtype=np.int64)
