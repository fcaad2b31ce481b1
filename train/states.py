"""Keeps a base's hidden states of packed rows on disk, so that drafters are trained without running the base.

    python -m train.states --base MODEL --data PACKED --kind eagle --config CONFIG --output STATES

`PACKED` was made by `train.pack` with the tokenizer of `MODEL`. The base reads every document once. For each token its
hidden state is kept, the token that the base predicts there, and the taps that a kind of drafter reads (`--kind`,
`--config`) or that are named (`--taps`).
`train.drafter --states STATES` then trains a drafter of any kind whose taps are among them. Their size is told first,
and where the disk has no room nothing is written. A run that was cut off goes on with `--resume`.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import jax
import numpy as np
from jax.sharding import Mesh
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from jax_smash.checkpoints.directory import check_new
from jax_smash.cli.lists import Numbers
from jax_smash.hosts import HostOptions, agree, decided, is_first, join_hosts
from jax_smash.sharding import MeshShape, make_mesh
from train.data.rows import Batch, Packed
from train.data.states import (
    RECORD,
    Places,
    StateBatch,
    StatesRecord,
    Writer,
    free_bytes,
    read_record,
    states_bytes,
    unfinished,
)
from train.drafter import KINDS
from train.parts.drafter.base import target_folder
from train.parts.drafter.kept import KeptStates, every_batch, reader
from train.parts.drafter.rows import ReplyRows, replies_of
from train.run.batches import Share
from train.run.options import JoinOptions
from train.run.program import make_devices, run_program, tell_in_log
from train.run.settings import load_kind
from train.run.start import Stored, stored_weights
from train.run.step import check_rows, place_rows

PROGRESS = "progress.json"
"""In a folder that is not whole: the batches that are on disk, and the size of a batch."""


def main(
    base: str,
    data: Path,
    output: Path,
    kind: str | None = None,
    config: Path | None = None,
    taps: Numbers = (),
    length: int | None = None,
    dtype: str = "bfloat16",
    products: str = "float32",
    batch_size: int = 8,
    save_every: int = 50,
    mesh: str | None = None,
    devices: int | None = None,
    resume: bool = False,
    **hosts: Unpack[JoinOptions],
) -> None:
    """Keeps a base's states of packed rows on disk. Several hosts compute them together, and the first one writes.

    Args:
      base: a shipped model, a Hugging Face folder or a hub id.
      data: folder of shards, made by `train.pack` with the base's tokenizer.
      output: a folder that is absent or empty.
      kind: of drafter, whose taps are kept; with `config`.
      config: training file of that kind, which also says the rows' length.
      taps: numbers of further residuals that are kept: tap i enters layer i, from 0.
      length: tokens that an entry sees at most, where no `config` says it.
      dtype: of what is kept, float32 or bfloat16.
      products: dtype that the base computes in.
      batch_size: rows that are read at once.
      save_every: batches after which the work is safe.
      mesh: devices, as in `fsdp=4` or by a preset; by default each reads a share of the rows.
      devices: on a CPU, how many virtual devices it makes.
      resume: go on with a run that was cut off.
      hosts: how several of them are joined.
    """
    make_devices(devices, mesh, processes=join_hosts(HostOptions(**hosts)))
    folder = target_folder(base)
    stored, packed = stored_weights(folder), Packed(data, folder)
    asked, found_length = _asked(kind, config, taps, length, stored, packed, dtype)
    if min(batch_size, save_every) < 1:
        raise ValueError(f"batch_size and save_every must be at least 1; got {batch_size} and {save_every}")
    record = StatesRecord(
        base_fingerprint="",
        base_sha256=stored.sha256,
        config_sha256=stored.config_sha256,
        packed_sha256=packed.index["sources_sha256"],
        tokenizer_sha256=packed.index["tokenizer_sha256"],
        length=found_length,
        taps=asked,
        products=products,
        dtype=dtype,
        width=stored.config.d_model,
        likeliest=True,
    )
    given = {"--batch-size": batch_size, "--save-every": save_every, "--mesh": mesh, "--resume": resume}
    agree(given | {f"the states' {name}": value for name, value in dataclasses.asdict(record).items()})
    on = make_mesh(mesh or MeshShape(data=jax.device_count()), kv_heads=stored.config.num_kv_heads)
    _keep(stored, packed, record, output, on, batch_size=batch_size, save_every=save_every, resume=resume)


def _keep(
    stored: Stored,
    packed: Packed,
    record: StatesRecord,
    output: Path,
    mesh: Mesh,
    *,
    batch_size: int,
    save_every: int,
    resume: bool,
) -> None:
    """Keeps the states that a record describes; its fingerprint is not known yet."""
    places, work = Places(packed), unfinished(output)
    if resume and decided((output / RECORD).is_file):
        decided(lambda: _check_same(output, record))
        print(f"{output} is whole: all its states were there before")
        return
    done = decided(lambda: _begun(work, record, batch_size) if resume else _check_free(output, work))
    decided(lambda: _tell_size(record, places, output, work))
    check_rows(batch_size, mesh)
    params, mark = stored.load(mesh)
    record = dataclasses.replace(record, base_fingerprint=mark)
    share, read = Share.of_this_process(), reader(stored, record, mesh)

    def read_share(batch: Batch) -> KeptStates:
        return jax.block_until_ready(read(params, place_rows(share.rows_of(batch), mesh)))

    if not is_first():
        for batch, _ in itertools.islice(every_batch(packed, places, record.length, batch_size), done, None):
            read_share(batch)
        return
    work.mkdir(parents=True, exist_ok=True)
    record.write(work)
    _write(read_share, packed, record, places, work, done, batch_size, save_every)
    os.replace(work, check_new(output))
    (output / PROGRESS).unlink()
    print(f"states of {places.tokens:,} tokens kept in {output}")


def _asked(
    kind: str | None,
    config: Path | None,
    taps: tuple[int, ...],
    length: int | None,
    base: Stored,
    packed: Packed,
    dtype: str,
) -> tuple[tuple[int, ...], int]:
    """Returns the taps to keep and the rows' length.

    Raises:
      ValueError: a kind stands without a training file or the other way round, there is no length or two, the base
        has no such taps or positions, or the rows have no reply of those that the file tells of.
    """
    if (kind is None) != (config is None):
        raise ValueError("kind and config must be given together")
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
    if (length is None) == (config is None):
        raise ValueError("the rows' length must be that of config, or be given as length; got both or neither")
    if kind is not None and config is not None:
        settings = load_kind(KINDS[kind].kind, config, model=base.config, init_sha256=base.sha256, states=dtype)
        taps, length = (*settings.read_taps, *taps), settings.length
        around = (settings.reply_begins, settings.reply_ends)
        ReplyRows(packed, replies_of(base.folder, *around), length, settings.batch_size).check_replies(*around)
    layers, most = base.config.num_layers, base.config.max_positions
    if wrong := sorted(tap for tap in taps if not 0 <= tap <= layers):
        raise ValueError(f"taps must be from 0 to the base's {layers} layers; got {wrong[0]}")
    if length is None or not 1 <= length <= most:
        raise ValueError(f"length must be from 1 to the base's {most} positions; got {length}")
    return tuple(sorted({*taps})), length


def _check_free(output: Path, work: Path) -> int:
    """Checks that nothing stands where states are to be kept; returns 0, the batches that are there."""
    check_new(output)
    if work.exists():
        raise FileExistsError(f"{work} was left by a run that was cut off: --resume goes on, or remove it")
    return 0


def _begun(work: Path, record: StatesRecord, batch_size: int) -> int:
    """Returns how many batches of a run that was cut off are on disk; 0 where none was begun.

    Raises:
      ValueError: it was begun with something else.
    """
    if not (work / RECORD).is_file():
        return 0
    _check_same(work, record)
    if not (work / PROGRESS).is_file():
        return 0
    progress = json.loads((work / PROGRESS).read_text())
    if progress["batch_size"] != batch_size:
        raise ValueError(f"{work} was begun with batch_size {progress['batch_size']}; got {batch_size}")
    return progress["batches"]


def _check_same(folder: Path, record: StatesRecord) -> None:
    """Raises ValueError where a folder's states are made from something else than a record says."""
    before = read_record(folder)
    for field in dataclasses.fields(record):
        was, now = getattr(before, field.name), getattr(record, field.name)
        if was != now and field.name != "base_fingerprint":  # Known only from the weights, whose files are the same.
            raise ValueError(f"{folder} was made with {field.name} {was}; got {now}")


def _tell_size(record: StatesRecord, places: Places, output: Path, work: Path) -> None:
    """Prints what states will take, before anything is written.

    Raises:
      OSError: the disk has no room for what is still to be written.
    """
    size, free = states_bytes(record, places), free_bytes(output.parent)
    there = sum(path.stat().st_blocks * 512 for path in work.glob("*.npy")) if work.exists() else 0
    streams = ", ".join(record.streams)
    print(f"{places.tokens:,} tokens of {streams} ({record.dtype}): {size:,} bytes; {free:,} are free", flush=True)
    if size - there > free:
        raise OSError(
            errno.ENOSPC, f"no room for states: {size - there:,} bytes are needed, {free:,} are free", str(output)
        )


def _write(
    read: Callable[[Batch], KeptStates],
    packed: Packed,
    record: StatesRecord,
    places: Places,
    work: Path,
    done: int,
    batch_size: int,
    save_every: int,
) -> None:
    """Reads the batches that are missing, and writes their states."""
    writer = Writer(work, record, places)
    progress = Progress(
        BarColumn(), DownloadColumn(), TimeRemainingColumn(elapsed_when_finished=True), console=Console(stderr=True)
    )
    try:
        with progress:
            task = progress.add_task("", total=states_bytes(record, places))
            for number, (batch, entries) in enumerate(every_batch(packed, places, record.length, batch_size), start=1):
                tokens = int(np.count_nonzero(batch.segments))
                progress.update(task, advance=tokens * record.token_bytes)
                if number <= done:
                    continue
                kept = jax.tree.map(np.asarray, read(batch))
                writer.write(StateBatch(*batch, *kept), entries)
                if number % save_every == 0:
                    writer.flush()
                    _save_progress(work, number, batch_size)
                    tell_in_log(progress, f"{number:,} batches kept, {progress.tasks[task].percentage:.0f}% of all")
            writer.flush()
    except OSError as error:
        raise OSError(error.errno, f"states could not be written: {error.strerror}", str(work)) from error
    finally:
        writer.close()
    _save_progress(work, number, batch_size)


def _save_progress(work: Path, batches: int, batch_size: int) -> None:
    temporary = work / (PROGRESS + ".tmp")
    temporary.write_text(json.dumps({"batches": batches, "batch_size": batch_size}))
    os.replace(temporary, work / PROGRESS)


if __name__ == "__main__":
    run_program(main)
