"""Options on compiled programs that are kept: `--programs FOLDER`, `--no-compilation-cache`."""

import dataclasses
import fnmatch
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from jax_smash.cli.errors import UsageError

BESIDE = "beside"
"""In place of a folder's name: the one that stands beside the checkpoint."""

FOLDER = "programs"
"""Name of that folder."""

VERSIONS = "jax-{jax}-jaxlib-{jaxlib}"
"""Name of the folders that hold the programs themselves, below one for each kind of device."""


@dataclasses.dataclass(frozen=True)
class ProgramFlags:
    """Compiled programs are kept on disk, so that the next start is faster."""

    compilation_cache: Annotated[bool, tyro.conf.arg(help_behavior_hint="(default: on)")] = True
    """Keep compiled programs: in the user's cache directory, or where --programs says."""
    programs: Annotated[
        str | None, tyro.conf.DisallowNone, tyro.conf.arg(metavar=f"FOLDER|{BESIDE}", help_behavior_hint="")
    ] = None
    """Keep them in this folder, by device and versions, for this and other machines; beside is the folder programs/
    beside the checkpoint. Where it cannot be written, it is read."""

    def check(self, model: str) -> None:
        """Checks the options, before anything is loaded or written.

        Raises:
          UsageError: they do not go together, or name no folder.
        """
        if self.programs is None:
            return
        if not self.compilation_cache:
            raise UsageError("--programs and --no-compilation-cache exclude each other")
        check_programs(self.programs)
        if self.programs == BESIDE:
            from jax_smash.loading import PACKAGED, SHIPPED

            if model in (*SHIPPED, *PACKAGED) and not Path(model).exists():
                raise UsageError(
                    f"--programs {BESIDE} needs a model in a folder of its own, and {model} comes in a package; name a "
                    f"folder, as in --programs {FOLDER}"
                )

    def begin(self, model: str) -> None:
        """Has programs kept as the options say. JAX takes its devices, if they name a folder.

        Raises:
          FileNotFoundError, ValueError: as `jax_smash.loading.find` says.
        """
        from jax_smash.cli.compilation_cache import use_compilation_cache

        folder = None
        if self.programs is not None:
            from jax_smash.loading import find

            folder = programs_folder(self.programs, lambda: find(model))
        use_compilation_cache(self.compilation_cache, folder)


def check_programs(given: str) -> None:
    """Checks the value of `--programs`.

    Raises:
      UsageError: it names no folder.
    """
    if "://" in given:
        raise UsageError(f"--programs must be a folder; for a bucket, set JAX_COMPILATION_CACHE_DIR={given}")
    folder = Path(given).expanduser()
    if not given or (given != BESIDE and folder.exists() and not folder.is_dir()):
        raise UsageError(f"--programs must be a folder or {BESIDE}; got " + (f"the file {given}" if given else "''"))


def is_program(path: Path) -> bool:
    """Returns whether a path below a checkpoint is of compiled programs, which are no part of it."""
    return any(fnmatch.fnmatchcase(part, VERSIONS.format(jax="*", jaxlib="*")) for part in path.parts)


def programs_folder(given: str, checkpoint: Callable[[], Path]) -> Path:
    """Returns the folder that `--programs` means.

    Args:
      given: a folder, or `BESIDE`.
      checkpoint: finds the checkpoint's folder or GGUF file; called for `BESIDE` alone.
    """
    if given != BESIDE:
        return Path(given).expanduser()
    found = checkpoint()
    return (found.parent if found.is_file() else found) / FOLDER
