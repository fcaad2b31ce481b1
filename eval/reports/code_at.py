"""The code that a program could import at a commit, read from the repository."""

import ast
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from eval.reports.code_hashes import PACKAGES, ROOT


def code_at(commit: str, program: str, root: Path = ROOT) -> dict[str, str]:
    """Returns the sha256 of a program's file at a commit, and of every file of the packages that it leads to.

    All imports are followed, those within functions too, so there may be more files than a run has imported. Names
    that are imported by a table of strings are not found.

    Args:
      commit: its hash.
      program: as in eval.speed.
      root: of the repository.

    Raises:
      ValueError: the repository does not hold the commit, or the commit not the program.
    """
    names = set(_git(root, commit, "ls-tree", "-r", "--name-only", commit, "--", *PACKAGES).decode().splitlines())
    start = _file(program, names)
    if start is None:
        raise ValueError(f"program must be one of commit {commit}; got {program}")
    found: dict[str, str] = {}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name not in found:
            source = _git(root, commit, "show", f"{commit}:{name}")
            found[name] = sha256(source).hexdigest()
            waiting += [file for module in _imported(source) for file in _files(module, names)]
    return dict(sorted(found.items()))


def _imported(source: bytes) -> Iterator[str]:
    """Yields the dotted names that a file imports; what comes from a module may be a module too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files(module: str, names: set[str]) -> Iterator[str]:
    """Yields the files of a module and of the packages that it lies in."""
    parts = module.split(".")
    if parts[0] in PACKAGES:
        for end in range(1, len(parts) + 1):
            if file := _file(".".join(parts[:end]), names):
                yield file


def _file(module: str, names: set[str]) -> str | None:
    path = module.replace(".", "/")
    return next((file for file in (f"{path}.py", f"{path}/__init__.py") if file in names), None)


def _git(root: Path, commit: str, *arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)
    if done.returncode:
        raise ValueError(f"commit must be one of this repository; got {commit}: {done.stderr.decode().strip()}")
    return done.stdout
