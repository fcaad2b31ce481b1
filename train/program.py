"""How the programs of this folder begin and how they tell an error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import tyro

from jax_smash.cli.errors import debugging, describe
from train.memory import use_large_pages


def run_program(main: Callable[..., Any]) -> NoReturn:
    """Runs a program on its command line and leaves.

    What a user can cause is one line on standard error and status 1, 2 for a wrong command line and 130 after Ctrl-C.
    With JAX_SMASH_DEBUG=1 exceptions pass.
    """
    if any(word.startswith("--devices") for word in sys.argv):  # Then it runs on a CPU.
        use_large_pages()
    try:
        tyro.cli(main)
    except (ValueError, OSError, ImportError, MemoryError, RuntimeError) as error:
        if debugging():
            raise
        sys.exit(f"error: {' '.join(describe(error).split())}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def check_new_file(path: Path | None) -> None:
    """Checks, before any work, that a file can be made; None is no file.

    Raises:
      FileExistsError: it is there already.
      FileNotFoundError: its folder is not.
    """
    if path is not None and path.exists():
        raise FileExistsError(f"{path} exists; choose another file")
    if path is not None and not path.parent.is_dir():
        raise FileNotFoundError(f"{path} needs a folder {path.parent}; there is none")


def reason(error: Exception) -> str:
    """Returns why a file could not be read, in a few words to stand behind its name."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
