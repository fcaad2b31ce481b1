"""How the programs of this folder begin and how they tell an error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import tyro

from train.memory import use_large_pages


def run_program(main: Callable[..., Any]) -> NoReturn:
    """Runs a program on its command line and leaves; what a user can cause is told in one line."""
    if any(word.startswith("--devices") for word in sys.argv):  # Then it runs on a CPU.
        use_large_pages()
    try:
        tyro.cli(main)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    sys.exit(0)
