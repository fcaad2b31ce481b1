"""Recipes: JSON files that name programs of training and evaluation, run one after another, and what each reads.

A recipe has a `description`, `inputs` with a word on each, and `stages`. A stage has a `name`, a `program`, its
`options`, and a `seed` where the program takes one. An option that begins with `@` refers to an input or to what an
earlier stage made: `@data`, `@start/model`. Any other path is that of a file beside the recipe. Every program is given
its `--output`, so that is no option; neither is `--resume`. Nothing of a program of `eval` is used but the names of its
options, so that a recipe can be checked before hours of training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import io
import json
import os
import re
import shlex
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tyro

from train.run.program import options_of, reason

REFERENCE = "@"
"""Begins the name of an input or of a stage."""

GIVEN = ("output", "resume", "seed")
"""Options that no stage states among its own."""

_NAME = re.compile(r"[a-z0-9]+([-_][a-z0-9]+)*")
_PROGRAM = re.compile(r"(train|eval)\.[a-z_]+")


@dataclasses.dataclass(frozen=True)
class Stage:
    """One program and its options.

    Attributes:
      name: of the stage, of its folder and of its log.
      program: a module of `train` whose `main`, or one of `eval` whose `Settings`, takes `output`.
      options: by their names there, in the order of the command line.
      seed: of all that the program draws; None where it draws nothing.
    """

    name: str
    program: str
    options: dict[str, Any]
    seed: int | None = None

    @property
    def takes(self) -> Callable[..., Any]:
        """What has the program's options as its parameters: its function, or the class of its settings."""
        name = "Settings" if self.program.startswith("eval.") else "main"
        return getattr(importlib.import_module(self.program), name, lambda: None)

    @property
    def resumes(self) -> bool:
        """Whether the program can go on with what it left when it was cut off."""
        return "resume" in options_of(self.takes)

    @property
    def reads(self) -> tuple[str, ...]:
        """What options refer to and which files beside the recipe they name, as the recipe writes it."""
        found = [value for name, value in self._values() if self._is_read(name, value)]
        return tuple(dict.fromkeys(found))

    def words(self, place: Callable[[str], str] = str) -> list[str]:
        """Returns the command line's options without `--output` and `--resume`.

        Args:
          place: gives the path of what is read; by default it stands as the recipe writes it.
        """
        words = []
        for name, value in self.options.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
                continue
            values = value if isinstance(value, list) else [value]
            words += [f"--{flag}", *(place(each) if self._is_read(name, each) else str(each) for each in values)]
        return words if self.seed is None else [*words, "--seed", str(self.seed)]

    @property
    def told(self) -> str:
        """The command as the recipe writes it, the same on every machine."""
        return shlex.join(["python", "-m", self.program, *self.words()])

    def check(self) -> None:
        """Checks that the program exists and takes the options.

        Raises:
          ValueError: it does not.
        """
        if not _PROGRAM.fullmatch(self.program) or importlib.util.find_spec(self.program) is None:
            raise ValueError(f"unknown program {self.program!r}: it must be one of train or eval, as in train.base")
        parameters = options_of(self.takes)
        if "output" not in parameters:
            raise ValueError(f"{self.program} cannot be a stage: it has no option output")
        for name in self.options:
            if name in GIVEN:
                whose = "it is a field of its own" if name == "seed" else "the recipe gives it"
                raise ValueError(f"{name} is not an option of a stage: {whose}")
            if name not in parameters:
                raise ValueError(f"{self.program} has no option {name!r}")
        if ("seed" in parameters) != (self.seed is not None):
            has = "draws by a seed, which must be stated" if self.seed is None else "takes no seed"
            raise ValueError(f"{self.program} {has}; got {self.seed}")
        needed = [name for name, option in parameters.items() if option.needed]
        if missing := [name for name in needed if name not in self.options and name not in GIVEN]:
            raise ValueError(f"{self.program} needs the option {missing[0]!r}")
        _parse(self.takes, [*self.words(), "--output", "OUTPUT"], self.program)

    @functools.cached_property
    def _paths(self) -> frozenset[str]:
        """Options that hold paths."""
        hints = {name: option.hint for name, option in options_of(self.takes).items()}
        return frozenset(name for name, hint in hints.items() if Path in (hint, *typing.get_args(hint)))

    def _values(self) -> Iterator[tuple[str, Any]]:
        for name, value in self.options.items():
            yield from ((name, each) for each in (value if isinstance(value, list) else [value]))

    def _is_read(self, name: str, value: Any) -> bool:
        return isinstance(value, str) and (value.startswith(REFERENCE) or name in self._paths)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Stages in their order.

    Attributes:
      path: of the file.
      description: what it makes, and what of its history is not known.
      inputs: what a user gives, by name, with a word on each.
      stages: each reads inputs, files beside the recipe, and what stages before it made.
    """

    path: Path
    description: str
    inputs: dict[str, str]
    stages: tuple[Stage, ...]

    @property
    def names(self) -> list[str]:
        """Of the stages."""
        return [stage.name for stage in self.stages]

    @property
    def files(self) -> list[str]:
        """Files beside the recipe that its stages read, as it writes them."""
        reads = [read for stage in self.stages for read in stage.reads if not read.startswith(REFERENCE)]
        return list(dict.fromkeys(reads))

    def beside(self, name: str) -> Path:
        """Returns the path of a file beside the recipe."""
        return Path(os.path.normpath(self.path.parent / name))


def split_reference(reference: str) -> tuple[str, str]:
    """Returns the name that a reference begins with, and the path below it, which may be empty."""
    name, _, below = reference.removeprefix(REFERENCE).partition("/")
    return name, below


def load_recipe(path: Path, seed: int = 0) -> Recipe:
    """Returns a recipe whose programs, options, references and files were checked.

    Args:
      path: of the file.
      seed: is added to the seed of each stage.

    Raises:
      ValueError: it cannot be read, a field is missing or unknown, or a stage cannot be run.
    """
    try:
        fields = dict(json.loads(path.read_text(encoding="utf-8")))
        description, inputs, stages = fields.pop("description"), fields.pop("inputs", {}), fields.pop("stages")
        if fields:
            raise ValueError(f"unknown field {min(fields)!r}")
        description = description if isinstance(description, str) else "\n".join(description)
        recipe = Recipe(path, description, dict(inputs), tuple(Stage(**stage) for stage in stages))
        _check_fields(recipe)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a recipe: {reason(error)}") from error
    _check_references(recipe)
    for stage in recipe.stages:
        try:
            stage.check()
        except ValueError as error:
            raise ValueError(f"{path}: stage {stage.name!r}: {error}") from error
    for name in recipe.files:
        if not recipe.beside(name).exists():
            raise FileNotFoundError(f"{path} names a file {recipe.beside(name)}; there is none")
    seeded = [s if s.seed is None else dataclasses.replace(s, seed=s.seed + seed) for s in recipe.stages]
    return dataclasses.replace(recipe, stages=tuple(seeded))


def _check_fields(recipe: Recipe) -> None:
    names = [*recipe.inputs, *(stage.name for stage in recipe.stages)]
    if not recipe.stages:
        raise ValueError("stages must not be empty")
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"a name must be of a-z, 0-9, - and _; got {name!r}")
        if names.count(name) > 1:
            raise ValueError(f"inputs and stages must have different names; got {name!r} more than once")
    for stage in recipe.stages:
        if not isinstance(stage.program, str) or not isinstance(stage.options, dict):
            raise ValueError(f"stage {stage.name!r} must have a program and options")
        if stage.seed is not None and (isinstance(stage.seed, bool) or not isinstance(stage.seed, int)):
            raise ValueError(f"stage {stage.name!r}: seed must be a whole number; got {stage.seed!r}")


def _check_references(recipe: Recipe) -> None:
    """Checks that stages refer to inputs and to earlier stages alone."""
    order = {stage.name: i for i, stage in enumerate(recipe.stages)}
    refers = {stage.name: [*dict.fromkeys(_referred(stage))] for stage in recipe.stages}
    for stage in recipe.stages:
        for name in refers[stage.name]:
            where = f"{recipe.path}: stage {stage.name!r} refers to {REFERENCE}{name}"
            if name not in order and name not in recipe.inputs:
                known = ", ".join([*recipe.inputs, *order])
                raise ValueError(f"{where}, which no stage makes; there are {known}")
            if order.get(name, -1) >= order[stage.name]:
                circle = name == stage.name or stage.name in _origins(name, refers)
                raise ValueError(f"{where}, {'which needs it in turn' if circle else 'a stage that comes later'}")


def _referred(stage: Stage) -> Iterator[str]:
    for value in stage.options.values():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str) and each.startswith(REFERENCE):
                yield split_reference(each)[0]


def _origins(name: str, refers: dict[str, list[str]]) -> set[str]:
    """Returns all that a stage's output comes from, whatever their order."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = [other for other in refers.get(waiting.pop(), []) if other not in found]
        found.update(new)
        waiting += new
    return found


def _parse(takes: Callable[..., Any], words: Sequence[str], program: str) -> None:
    """Reads a command line as a program will; raises ValueError with what it says of a wrong one."""

    def given(**options: Any) -> None:
        """Does nothing."""

    functools.update_wrapper(given, takes)

    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(said):
        try:
            tyro.cli(given, args=list(words), config=(tyro.conf.OmitArgPrefixes,))
        except SystemExit as end:
            text = " ".join(said.getvalue().split())
            message = re.search(r"-{9,} (?:Error parsing )?(.*?)(?: Got errors| -{9,})", text)
            raise ValueError(f"{program} does not take these options: {message[1] if message else text}") from end
