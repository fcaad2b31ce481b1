"""The command line: `jax-smash generate`, `info`, `convert`, `tune` and `plan`.

Modules of this package import JAX inside functions, so that `--help` and a mistyped option answer at once.
"""

from jax_smash.cli.main import main

__all__ = ["main"]
