"""A folder with an EAGLE drafter, of EAGLE-3 or EAGLE-1: which, its files tell."""

from pathlib import Path
from typing import Any

from jax_smash.checkpoints import eagle, eagle1
from jax_smash.checkpoints.eagle import Description, EagleModules
from jax_smash.checkpoints.eagle1 import Eagle1Modules
from jax_smash.checkpoints.module_files import Described


def is_eagle1(folder: str | Path) -> bool:
    """Returns whether a folder holds an EAGLE-1 drafter; False where it holds none of either.

    Raises:
      ValueError: it holds both.
    """
    folder = Path(folder).expanduser()
    found = [(folder / file).is_file() for file in (eagle1.CONFIG, eagle.CONFIG)]
    if all(found):
        raise ValueError(f"{folder} must have one drafter; it has both {eagle.CONFIG} and {eagle1.CONFIG}")
    return found[0]


def read_eagle_drafter(folder: str | Path) -> Description | Described:
    """Returns what a folder says of its drafter; weights are not read.

    Raises:
      FileNotFoundError: there is no description.
      ValueError: it is damaged, or there are two.
    """
    return eagle1.read_eagle1(folder) if is_eagle1(folder) else eagle.read_eagle(folder)


def load_eagle_drafter(folder: str | Path, *, dtype: Any = None) -> EagleModules | Eagle1Modules:
    """Loads what `save_eagle` or `save_eagle1` wrote, onto the default device.

    Args:
      folder: that holds the two files.
      dtype: of the weights in memory; None keeps the files'.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: one is damaged, as `load_eagle` and `load_eagle1` say.
    """
    return eagle1.load_eagle1(folder, dtype=dtype) if is_eagle1(folder) else eagle.load_eagle(folder, dtype=dtype)
