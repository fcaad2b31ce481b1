"""Trees as rows tell them: a name, or a file and what it holds."""

from pathlib import Path

from eval.reports.told_paths import told_path
from jax_smash.cli.resume import path_digest

SHOWN = 8
"""Digits of a file's digest."""


def told_tree(name: str) -> str:
    """Returns the name of a tree; of a file the path that reports tell and, behind `@`, what stands for its content.

    Args:
      name: of the tree, as `--tree` takes it.
    """
    return f"{told_path(name)}@{path_digest(Path(name))[:SHOWN]}" if name.endswith(".json") else name
