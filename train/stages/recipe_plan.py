"""What a recipe has still to make, found before anything is made."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from train.stages.recipe_file import REFERENCE, Recipe, Stage, split_reference
from train.stages.recipe_lock import BEGUN, MADE, Entry, Lock, below, changes, combined, hash_files


@dataclasses.dataclass(frozen=True)
class Places:
    """Where a recipe's inputs and outputs lie.

    Attributes:
      recipe: what is made.
      inputs: paths that the user gave, by name.
      output: folder of all outputs, of each stage below its name.
    """

    recipe: Recipe
    inputs: Mapping[str, Path]
    output: Path

    def path(self, read: str) -> Path:
        """Returns where something lies that a stage reads, by what the recipe calls it."""
        if not read.startswith(REFERENCE):
            return self.recipe.beside(read)
        name, rest = split_reference(read)
        return (self.inputs[name] if name in self.inputs else self.output / name) / rest

    def command(self, stage: Stage) -> list[str]:
        """Returns the words of a stage's command after `python -m`, without `--resume`."""
        words = stage.words(lambda read: str(self.path(read)))
        return [stage.program, *words, "--output", str(self.output / stage.name)]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is made already, and what differs from what was made.

    Attributes:
      lock: of the recipe as it is now; what has to be made, or made again, is `planned` or `begun`.
      differences: from the lock that was found, each in a few words.
    """

    lock: Lock
    differences: list[str]

    def due(self, recipe: Recipe) -> list[Stage]:
        """Returns the stages that are not made, in their order."""
        return [stage for stage in recipe.stages if self.lock.stages[stage.name].state != MADE]


def find_inputs(recipe: Recipe, given: Sequence[str], output: Path) -> dict[str, Path]:
    """Returns the path of each input.

    Args:
      recipe: says which there must be.
      given: words NAME=PATH.
      output: folder of outputs, which must not lie in an input.

    Raises:
      ValueError, FileNotFoundError: one is missing, unknown, given twice, or not there.
    """
    found: dict[str, Path] = {}
    for word in given:
        name, _, path = word.partition("=")
        if not path:
            raise ValueError(f"--input must be NAME=PATH; got {word!r}")
        if name not in recipe.inputs:
            raise ValueError(f"{recipe.path} has no input {name!r}; it has {', '.join(recipe.inputs) or 'none'}")
        if name in found:
            raise ValueError(f"--input {name} must be given once; got {found[name]} and {path}")
        found[name] = Path(path).expanduser()
        if not found[name].exists():
            raise FileNotFoundError(f"input {name!r} must be a file or folder; there is no {path}")
        if output.resolve().is_relative_to(found[name].resolve()):
            raise ValueError(f"output must not lie in input {name!r}, {path}, which it would change; got {output}")
    for name, what in recipe.inputs.items():
        if name not in found:
            raise ValueError(f"{recipe.path} needs --input {name}=PATH: {what}")
    return found


def make_plan(places: Places, old: Lock | None, *, again: Sequence[str] = ()) -> Plan:
    """Returns what is made and what is not, by the lock that was found and by the files as they are.

    Args:
      places: of the recipe.
      old: the lock; None where nothing was begun.
      again: stages to make whether or not they are made.

    Raises:
      ValueError: the lock is another recipe's, or a stage reads what another one did not make.
      FileExistsError: a stage that the lock does not know has a folder.
    """
    recipe, output = places.recipe, places.output
    if old is not None and old.recipe != recipe.path.stem:
        raise ValueError(f"{output} holds what recipe {old.recipe!r} made; got {recipe.path.stem!r}")
    names = [f"{REFERENCE}{name}" for name in recipe.inputs] + recipe.files
    inputs = {name: hash_files(places.path(name)) for name in names}
    lock, differences = Lock(recipe.path.stem, inputs, {}), []
    if old is not None:
        differences += _differing_inputs(old.inputs, inputs)
        differences += [f"stage {name!r} is gone from it" for name in old.stages if name not in recipe.names]
    for stage in recipe.stages:
        entry = new_entry(stage, lock)
        before = old.stages.get(stage.name) if old else None
        if old is not None and before is None:
            differences.append(f"stage {stage.name!r} is new in it")
            if (output / stage.name).exists():
                raise FileExistsError(f"{output / stage.name} is not this recipe's; remove it or choose another output")
        elif before is not None and stage.name not in again:
            entry, found = _continued(entry, before, output / stage.name)
            differences += [f"stage {stage.name!r}: {words}" for words in found]
        lock = lock.with_entry(stage.name, entry)
    return Plan(lock, differences)


def new_entry(stage: Stage, lock: Lock) -> Entry:
    """Returns the entry of a stage that is to be made.

    Args:
      stage: of the recipe.
      lock: holds the inputs and the entries of all stages before it.

    Raises:
      ValueError: it reads what a stage that is made did not make.
    """
    reads = {}
    for read in stage.reads:
        name, rest = split_reference(read) if read.startswith(REFERENCE) else ("", "")
        entry = lock.stages.get(name)
        if entry is not None and entry.state != MADE:
            reads[read] = ""
            continue
        files = entry.outputs if entry is not None else lock.inputs[f"{REFERENCE}{name}" if name else read]
        if not (hashes := below(files, rest)):
            whose = f"stage {name!r} made no such file" if entry is not None else "there is no such file"
            raise ValueError(f"stage {stage.name!r} reads {read}: {whose}")
        reads[read] = combined(hashes)
    return Entry(stage.told, hashlib.sha256(stage.told.encode()).hexdigest(), reads)


def _continued(entry: Entry, before: Entry, path: Path) -> tuple[Entry, list[str]]:
    """Returns a stage's entry as what was made, or begun, of it says, and what differs."""
    differences = []
    if entry.command != before.command:
        old, new = before.command.split(), entry.command.split()
        differences.append(
            f"it was {' '.join(word for word in old if word not in new) or before.command}, "
            f"now {' '.join(word for word in new if word not in old) or entry.command}"
        )
    same = not differences and entry.reads == before.reads
    if before.state == BEGUN and same:
        return dataclasses.replace(entry, state=BEGUN, code=before.code), differences
    if before.state != MADE or not same:
        return entry, differences
    outputs = hash_files(path)
    if not outputs:
        return entry, [f"its output {path} is gone"]
    if words := changes(before.outputs, outputs):
        differences.append(f"of its output, {words}")
    return dataclasses.replace(before, outputs=outputs), differences


def _differing_inputs(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    found = [f"input {name} is {'new' if name in now else 'gone'}" for name in sorted({*before} ^ {*now})]
    for name, files in now.items():
        if name in before and (words := changes(before[name], files)):
            found.append(f"input {name}: {words}")
    return found
