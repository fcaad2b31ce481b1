"""What a file of completions was made with and how far it reaches: what `--resume` goes by."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jax_smash.cli.errors import UsageError
from jax_smash.cli.program_options import is_program

MADE_WITH = "made_with"
"""Field of a file's first line that holds what `made_with` returns."""

ENDS = 2**16
"""Bytes at the beginning and the end of a large file that stand for all of it."""


class Kept(NamedTuple):
    """What a file of an earlier run holds.

    Attributes:
      lines: completions.
      size: their bytes; what follows is a line that was written in part.
      total: all bytes.
      made_with: what its first line says; None where it says nothing.
    """

    lines: int
    size: int
    total: int
    made_with: Any


NOTHING = Kept(0, 0, 0, None)


def read_kept(path: Path) -> Kept:
    """Returns what a file of an earlier run holds, up to its last whole line.

    Raises:
      OSError: it cannot be read.
      UsageError: one of its lines is no completion.
    """
    lines = size = 0
    made_with = None
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                fields = json.loads(line)
                if not isinstance(fields, dict) or "token_ids" not in fields:
                    raise ValueError("no completion")
            except ValueError as error:
                raise UsageError(
                    f"--resume: line {lines + 1} of {path} is no completion; nothing was changed"
                ) from error
            if lines == 0:
                made_with = fields.get(MADE_WITH)
            lines, size = lines + 1, size + len(line)
    return Kept(lines, size, path.stat().st_size, made_with)


def made_with(
    model: str,
    *,
    options: Mapping[str, Any],
    prompts: Sequence[Any],
    paths: Mapping[str, Path | Sequence[Path] | None],
    without: str | None = None,
) -> dict[str, Any]:
    """Returns what decides a file's completions, as JSON that can be compared.

    Args:
      model: its name, for who reads the file; what it is decides.
      options: given ones, by name.
      prompts: all of them.
      paths: files and folders that are read, the model's among them; by name, one or several. None stands for a file
        that is not there.
      without: a folder in those folders that does not count.
    """
    from jax_smash import __version__

    digests = {name: _digest_of(path, without) for name, path in paths.items()}
    digests["prompts"] = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16]
    made = {"jax_smash": __version__, "model": model, "options": dict(options), "sha256": digests}
    return json.loads(json.dumps(made))


def check_same(kept: Any, now: Mapping[str, Any], path: Path) -> None:
    """Checks that a file can be continued: that it was made with what is asked for now.

    Args:
      kept: what its first line says.
      now: from `made_with`.
      path: the file.

    Raises:
      UsageError: it was made with something else, or does not say what with.
    """
    if not isinstance(kept, dict) or not all(isinstance(kept.get(part), dict) for part in ("options", "sha256")):
        raise UsageError(f"--resume: {path} does not say what it was made with; nothing was changed")
    for what, name in (("prompts", "prompts"), ("model", "another model")):
        if kept["sha256"].get(what) != now["sha256"].get(what):
            raise UsageError(f"--resume: {path} was made with {'other ' * (what == name)}{name}; nothing was changed")
    if kept.get("jax_smash") != now["jax_smash"]:
        versions = f"jax_smash {kept.get('jax_smash')}; this is {now['jax_smash']}"
        raise UsageError(f"--resume: {path} was made by {versions}; nothing was changed")
    for part in ("options", "sha256"):
        for name in sorted({*kept[part], *now[part]}):
            was, is_ = kept[part].get(name), now[part].get(name)
            if was != is_:
                said = f" {_shown(was)}; got {_shown(is_)}" if part == "options" else ": another file or folder"
                raise UsageError(
                    f"--resume: {path} was made with --{name.replace('_', '-')}{said}; nothing was changed"
                )


def given_options(flags: Any, *, without: Sequence[str]) -> dict[str, Any]:
    """Returns the options of a command, those of its groups too, that are not at their defaults.

    Args:
      flags: a dataclass; its fields that are dataclasses are groups.
      without: names to leave out.
    """
    given: dict[str, Any] = {}
    for field in dataclasses.fields(flags):
        value = getattr(flags, field.name)
        if dataclasses.is_dataclass(value):
            given |= given_options(value, without=without)
        elif field.name not in without and value != field.default:
            given[field.name] = str(value) if isinstance(value, Path) else value
    return given


def _digest_of(paths: Path | Sequence[Path] | None, without: str | None) -> str:
    if paths is None:
        return "absent"
    if isinstance(paths, Path):
        return path_digest(paths, without=without)
    return "+".join(path_digest(path, without=without) for path in paths)


def path_digest(path: Path, *, without: str | None = None) -> str:
    """Returns letters that stand for a file's content, or for those of a folder's files and their names.

    Of a large file only its size, its beginning and its end are read, so that this takes no time. Hidden files and
    Markdown are left out, and compiled programs that are kept there.

    Args:
      path: of the file or folder.
      without: a folder in it that does not count.
    """
    digest = hashlib.sha256()
    files = (
        [path]
        if path.is_file()
        else sorted(p for p in path.rglob("*") if p.is_file() and _counts(p.relative_to(path), without))
    )
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.relative_to(path).as_posix()}\0{size}\0".encode())
        with file.open("rb") as content:
            digest.update(content.read(ENDS))
            content.seek(max(ENDS, size - ENDS))
            digest.update(content.read(ENDS))
    return digest.hexdigest()[:16]


def _counts(file: Path, without: str | None) -> bool:
    hidden = any(part.startswith(".") for part in file.parts)
    return not hidden and file.suffix != ".md" and file.parts[0] != without and not is_program(file)


def _shown(value: Any) -> str:
    return "at its default" if value is None else json.dumps(value, ensure_ascii=False)
