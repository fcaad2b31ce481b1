"""The parts of a checkpoint that its hosts wrote: whether all are there, before any is read.

Orbax reads a checkpoint with a missing part until it comes to it, and then says which array it was reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tensorstore

VALUE = re.compile(r"(?:value|btreenode):(?P<folder>[^:]*):(?P<file>[^:]+):(?P<start>\d+):(?P<bytes>\d+)")
"""Where a value or a node of the index lies: a folder and a file in it, from which byte, and how many."""

HOST = re.compile(r"ocdbt\.process_(\d+)/")


class Place(NamedTuple):
    """A range of a file."""

    file: str
    end: int


def missing_part(state: Path) -> str | None:
    """Returns what a checkpoint's arrays lack, by the host that wrote it; None where every file is there and whole.

    The index is read, of the files their sizes alone.

    Args:
      state: the folder of arrays in a checkpoint.

    Raises:
      ValueError: the index cannot be read.
    """
    ends: dict[str, int] = {}
    for file, end in _places(state):
        ends[file] = max(end, ends.get(file, 0))
    for file, end in sorted(ends.items()):
        path, host = state / file, HOST.match(file)
        part = f"the part of host {host[1]}" if host else "the index of its parts"
        whole = state / host[0] if host else path
        if not whole.exists():
            return f"it lacks {part}: {state.name}/{whole.relative_to(state)} is missing"
        if not path.is_file():
            return f"it lacks {part}: {state.name}/{file} is missing"
        if path.stat().st_size < end:
            return f"it lacks {part}: {state.name}/{file} must have {end} bytes or more; got {path.stat().st_size}"
    return None


def _places(state: Path) -> Iterator[Place]:
    """Yields where the values of a checkpoint and the nodes of its index lie."""
    store = tensorstore.KvStore.open({"driver": "file", "path": f"{state.absolute()}/"}).result()
    manifest = tensorstore.ocdbt.dump(store).result()
    if not manifest:
        raise ValueError(f"{state.name}/manifest.ocdbt is missing")
    roots = [version["root"]["location"] for version in manifest["versions"][-1:]]
    while roots:
        place = _place(location := roots.pop())
        yield place
        if (state / place.file).is_file() and (state / place.file).stat().st_size >= place.end:
            for entry in tensorstore.ocdbt.dump(store, node=location).result()["entries"]:
                yield from _values(entry, roots)


def _values(entry: dict[str, Any], roots: list[str]) -> Iterator[Place]:
    """Yields where an entry's value lies, if outside of the index; adds a further node to those to be read."""
    for name, value in entry.items():
        if name == "indirect_value":
            yield _place(value)
        elif name == "location":
            roots.append(value)


def _place(location: str) -> Place:
    match = VALUE.fullmatch(location)
    if match is None:
        raise ValueError(f"the index holds a place of an unknown form: {location}")
    return Place(match["folder"] + match["file"], int(match["start"]) + int(match["bytes"]))
