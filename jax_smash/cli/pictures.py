"""Pictures that commands draw into files: `--plot FILE.png`."""

import importlib.util
import os
from pathlib import Path

from jax_smash.cli.errors import UsageError


def check_plot(path: Path, *, overwrite: bool) -> None:
    """Checks that a picture can be drawn into a file.

    Raises:
      UsageError: the file is of another kind, or cannot be written.
      ImportError: matplotlib is not installed.
    """
    if path.suffix != ".png":
        raise UsageError(f"--plot must be a .png file; got {path}")
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path} needs a directory {path.parent}; there is none")
    if path.exists() and not (overwrite and path.is_file()):
        raise UsageError(f"--plot: {path} exists; --overwrite replaces a file")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"--plot {path} cannot be made: {path.parent} is read-only")
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("--plot needs matplotlib: pip install 'jax_smash[plot]'")


def write_picture(path: Path, content: bytes) -> None:
    """Writes a file that appears when it is whole.

    Raises:
      OSError: it cannot be written.
    """
    temporary = path.with_name(path.name + ".partial")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
