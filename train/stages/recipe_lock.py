"""What the outputs of a recipe were made from: hashes of inputs, commands and outputs, in a file beside them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from jax_smash.cli.program_options import is_program
from train.pack import file_sha256
from train.run.program import reason

LOCK = "recipe.lock.json"
RUNNING = ".running"
"""File of the outputs' folder that a call holds, and every stage that it begins."""

PLANNED, BEGUN, MADE = "planned", "begun", "made"

Hashes = Mapping[str, str]
"""SHA-256 of files by their paths below a folder; a file that stands alone is `.`."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """What is known of a stage.

    Attributes:
      command: as the recipe writes it.
      command_sha256: its hash.
      reads: the hash of all that it reads, by what the recipe calls it; empty where it is not made yet.
      state: `planned`, `begun` or `made`.
      code: commits and versions of packages that the stage ran with: several where it was cut off.
      outputs: of its files, hidden ones left out.
    """

    command: str
    command_sha256: str
    reads: dict[str, str]
    state: str = PLANNED
    code: tuple[str, ...] = ()
    outputs: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Lock:
    """What is known of a recipe's outputs.

    Attributes:
      recipe: the name of its file, without `.json`.
      inputs: of the files of each input, and of each file that lies beside the recipe.
      stages: in their order.
    """

    recipe: str
    inputs: dict[str, dict[str, str]]
    stages: dict[str, Entry]

    def with_entry(self, name: str, entry: Entry) -> Lock:
        """Returns the lock with another entry of a stage."""
        return dataclasses.replace(self, stages=self.stages | {name: entry})


def hash_files(path: Path) -> dict[str, str]:
    """Returns the hash of a file, or of each file below a folder; hidden files and folders are left out.

    So are compiled programs that are kept there. Links are followed, since programs follow them. What does not exist
    has no files.
    """
    if path.is_file():
        return {".": file_sha256(path)}
    found = {}
    for folder, folders, files in os.walk(path, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and not is_program(Path(name)))
        for name in sorted(files):
            if not name.startswith("."):
                file = Path(folder, name)
                found[file.relative_to(path).as_posix()] = file_sha256(file)
    return found


def below(hashes: Hashes, path: str) -> dict[str, str]:
    """Returns the files of a folder among those of one above it; of a file, the file alone."""
    if not path:
        return dict(hashes)
    if path in hashes:
        return {".": hashes[path]}
    return {name.removeprefix(f"{path}/"): sha for name, sha in hashes.items() if name.startswith(f"{path}/")}


def combined(hashes: Hashes) -> str:
    """Returns one hash of files and their names."""
    return hashlib.sha256(json.dumps(dict(hashes), sort_keys=True).encode()).hexdigest()


def changes(before: Hashes, now: Hashes) -> str:
    """Returns a few words on which files differ; empty where none does."""
    words = [f"{name} is {'new' if name not in before else 'gone'}" for name in sorted({*before} ^ {*now})]
    words += [f"{name} changed" for name in sorted({*before} & {*now}) if before[name] != now[name]]
    if words == [". changed"]:
        return "it changed"
    return ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")


def read_lock(output: Path) -> Lock | None:
    """Returns the lock of a folder of outputs; None where there is no such folder, or nothing in it.

    Raises:
      FileExistsError: the folder holds something else.
      ValueError: the lock cannot be read.
    """
    path = output / LOCK
    if not path.exists():
        if output.exists() and (not output.is_dir() or any(not file.name.startswith(".") for file in output.iterdir())):
            raise FileExistsError(f"{output} is not a recipe's: it exists and has no {LOCK}; choose another folder")
        return None
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        stages = {name: Entry(**entry | {"code": tuple(entry["code"])}) for name, entry in fields["stages"].items()}
        return Lock(fields["recipe"], fields["inputs"], stages)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a recipe's lock: {reason(error)}") from error


def write_lock(output: Path, lock: Lock) -> None:
    """Writes a lock; the one before stays whole until this one is on the disk.

    Raises:
      OSError: the disk is full, or fails otherwise.
    """
    path = output / LOCK
    temporary = path.with_name(f".{LOCK}.part")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(lock), file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def only_call(output: Path) -> Iterator[int]:
    """Keeps other calls from a folder of outputs; yields the descriptor of the file that is locked.

    Each stage inherits it, so one that outlives a call that was killed keeps others away too.

    Raises:
      ValueError: another call, or a stage that it began, is at work there.
    """
    output.mkdir(parents=True, exist_ok=True)
    with (output / RUNNING).open("a+", encoding="utf-8") as file:
        taken = False
        with contextlib.suppress(ImportError, OSError):  # Some file systems have no such locks.
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                taken = True
        if taken:
            file.seek(0)
            raise ValueError(
                f"{output} is in use: {file.read().strip() or 'another call'} runs; wait for it, or stop it"
            )
        file.truncate(0)
        yield file.fileno()
