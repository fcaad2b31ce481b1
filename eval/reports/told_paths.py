"""Paths as a report tells them: the same on every machine."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DATA = "DATA"
"""Stands for the folder of data in what is told; the environment variable of this name says where it is."""

OUTPUTS = ("--json", "--plot", "--details")
"""Options that name a file to write, whose folder says nothing."""

MODEL_FILES = ("config.json", "smasher.json", "*.safetensors", "*.gguf")
MACHINE_PATH = re.compile(
    r"(?<![\w.$}/-])(?:/(?:home|root|tmp|work|workspace|mnt|var|opt|usr|srv|media|data|scratch|private|Users)/|~/)"
    r"[^\s'\"`,;:()\[\]|]*"
)
"""A path that exists on one machine, within a text."""


def told_arguments(arguments: Sequence[str]) -> list[str]:
    """Returns a command line without the paths of this machine.

    Args:
      arguments: words, as a program was given them.
    """
    told, option = [], ""
    for word in arguments:
        name, equals, value = word.partition("=")
        if word.startswith("--") and equals:
            told.append(f"{name}={told_path(value, output=name in OUTPUTS)}")
        else:
            option = word if word.startswith("--") else option
            told.append(told_path(word, output=option in OUTPUTS))
    return told


def told_path(word: str, *, output: bool = False) -> str:
    """Returns a word of a command line, or an option's value, without the paths of this machine.

    Each part of `A,B` and of `NAME=PATH` is told by itself. A path inside the project is told from the project's root,
    an output and a model by its name alone, and any other as `DATA/…`: from the folder that the environment variable
    DATA names where it lies in it, else by its name. What is no path outside the project stays as it is.

    Args:
      word: as it was given.
      output: it names a file to write.
    """
    return "".join(_told(part, output) for part in re.split(r"([,=])", word))


def told_setting(name: str, value: Any) -> Any:
    """Returns an option's value, or each of its values, without the paths of this machine."""
    if isinstance(value, str | Path):
        return told_path(str(value), output=f"--{name}" in OUTPUTS)
    return [told_setting(name, v) for v in value] if isinstance(value, list | tuple) else value


def told(value: Any) -> Any:
    """Returns what a report holds, with every text in it, keys too, freed from the paths of this machine."""
    if isinstance(value, Path):
        return told_path(str(value))
    if isinstance(value, str):
        return MACHINE_PATH.sub(lambda found: told_path(found[0]), value)
    if isinstance(value, Mapping):
        return {told(k): told(v) for k, v in value.items()}
    if isinstance(value, Sequence):
        return [told(v) for v in value]
    return value


def _told(part: str, output: bool) -> str:
    if not part.startswith(("/", "~/", "../")):
        return part
    path = Path(os.path.abspath(os.path.expanduser(part)))
    if not MACHINE_PATH.match(part) and (path.parent == Path("/") or not path.parent.exists()):
        return part
    if path.is_relative_to(ROOT):
        return path.relative_to(ROOT).as_posix()
    if output or _is_model(path):
        return path.name
    data = os.environ.get(DATA)
    if data and path.is_relative_to(os.path.abspath(data)):
        return f"{DATA}/{path.relative_to(os.path.abspath(data)).as_posix()}"
    return f"{DATA}/{path.name}"


def _is_model(path: Path) -> bool:
    return path.suffix == ".gguf" or any(any(path.glob(pattern)) for pattern in MODEL_FILES)
