"""What code made weights: the commit and the versions of packages, for their card."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "tokenizers", "transformers")


def made_by(root: Path = ROOT) -> str:
    """Returns a line for a card: the commit of the code and whether files differ from it, and versions.

    Args:
      root: folder of the code; where it is no repository, the line says so.
    """
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    return f"{_commit(root)}; Python {platform.python_version()}, {versions}"


def _commit(root: Path) -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return f"commit {git('rev-parse', 'HEAD')}{' with changes' if git('status', '--porcelain') else ''}"
    except (OSError, subprocess.CalledProcessError):
        return f"jax_smash {importlib.metadata.version('jax_smash')}, outside a repository"
