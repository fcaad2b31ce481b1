"""How the programs of this folder begin and how they tell an error."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import tyro
from rich.progress import Progress

from jax_smash.cli.compilation_cache import use_compilation_cache
from jax_smash.cli.errors import debugging, describe, platform_problem
from jax_smash.hosts import fail, is_first, joined
from jax_smash.platform import skip_absent_tpu
from jax_smash.sharding import add_virtual_devices
from train.run.memory import use_large_pages


class Option(NamedTuple):
    """An option of a program.

    Attributes:
      hint: its type.
      needed: it has no default.
    """

    hint: Any
    needed: bool


def run_program(main: Callable[..., Any], *, compilation_cache: bool = True) -> NoReturn:
    """Runs a program on its command line and leaves. Where it is one of several processes, an error ends them all.

    What a user can cause is one line on standard error and status 1, 2 for a wrong command line and 130 after Ctrl-C.
    With JAX_SMASH_DEBUG=1 exceptions pass.

    Args:
      main: takes the options.
      compilation_cache: compiled programs may come from disk: not where compiling is what is measured.
    """
    if any(word.startswith("--devices") for word in sys.argv):  # Then it runs on a CPU.
        use_large_pages()

    @functools.wraps(main)  # So that its options are read from it.
    def begin(*args: Any, **options: Any) -> None:
        if options.get("programs") is None:  # Else the run begins with them, once it has its devices.
            use_compilation_cache(compilation_cache)
        skip_absent_tpu()
        main(*args, **options)

    try:
        tyro.cli(begin, config=(tyro.conf.OmitArgPrefixes,))  # Options that programs share have plain names too.
    except (ValueError, OSError, ImportError, MemoryError, RuntimeError, AssertionError) as error:
        if debugging() or (isinstance(error, AssertionError) and platform_problem(error) is None):
            raise
        end_badly(describe(error))
    except KeyboardInterrupt:
        fail("", status=130)
    sys.exit(0)


def end_badly(text: str) -> NoReturn:
    """Leaves with status 1 and one line on standard error."""
    line = f"error: {' '.join(text.split())}"
    fail(line) if joined() else sys.exit(line)


def options_of(main: Callable[..., Any]) -> dict[str, Option]:
    """Returns a program's options by name, those that it shares with others among them."""
    hints = typing.get_type_hints(main)
    found: dict[str, Option] = {}
    for name, parameter in inspect.signature(main).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            # Of `**options: Unpack[...]`; none of them is needed.
            (shared,) = typing.get_args(hints[name])
            found |= {own: Option(hint, needed=False) for own, hint in typing.get_type_hints(shared).items()}
        else:
            found[name] = Option(hints[name], needed=parameter.default is parameter.empty)
    return found


def make_devices(devices: int | None, mesh: str | None, *, processes: int = 1) -> None:
    """Lets a CPU have as many virtual devices as were asked for, or else as a mesh needs; before JAX is used."""
    if devices is not None:
        jax.config.update("jax_num_cpu_devices", devices)
    else:
        add_virtual_devices(mesh, processes=processes)


def tell_in_log(progress: Progress, line: str) -> None:
    """Prints a line on the first host's standard error where that is a file, in which no bar moves."""
    if is_first() and not progress.console.is_terminal:
        print(line, file=sys.stderr, flush=True)


def check_sources(path: Path | None) -> None:
    """Checks, before any work, that a file on the text's sources can be read; None is no file.

    Raises:
      FileNotFoundError: there is none.
      ValueError: it is not UTF-8 text.
    """
    if path is None:
        return
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a file on the text's sources; there is none")
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read as UTF-8 text: {error}") from error


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


def file_in(output: Path, name: str) -> Path:
    """Returns the file of an output: itself, or, where its name has no ending, the file of that name in a folder."""
    return output if output.suffix else output / name


def reason(error: Exception) -> str:
    """Returns why a file could not be read, in a few words to stand behind its name."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
