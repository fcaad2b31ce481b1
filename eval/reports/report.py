"""What every measured file says beside its figures: the device, the versions, the commit, the command."""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from eval.reports.code_hashes import code_hashes
from eval.reports.told_paths import told, told_arguments, told_setting
from jax_smash.cli.compilation_cache import use_compilation_cache
from jax_smash.cli.errors import debugging, describe, platform_problem
from jax_smash.cli.host_options import HostFlags
from jax_smash.hosts import agree, fail, is_first, joined
from jax_smash.platform import skip_absent_tpu

ROOT = Path(__file__).parents[2]
CPU_INFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
WORDS = (
    *("method", "tree", "category", "learner", "family", "way", "reader", "task", "metric", "settings", "program"),
    *("kind", "shape", "mode", "place", "reason", "opcode", "op_name", "chip"),
)
"""Columns of a table that hold words, not figures."""


def describe_device() -> dict[str, Any]:
    """Returns the first device's platform, kind, number and memory, and the host's processor, cores and cache."""
    device = jax.local_devices()[0]
    stats = device.memory_stats() or {}
    return {
        "platform": device.platform,
        "kind": device.device_kind,
        "count": jax.device_count(),
        "memory_bytes": stats.get("bytes_limit"),
        "host_processor": _processor(),
        "host_cores": os.cpu_count(),
        "host_last_level_cache_bytes": last_level_cache(),
    }


def last_level_cache() -> int | None:
    """Returns the bytes of the host's largest cache; None where the system does not tell."""
    sizes = [path.read_text().strip() for path in CACHES.glob("index*/size")]
    units = {"K": 2**10, "M": 2**20}
    return max((int(s[:-1]) * units[s[-1]] for s in sizes if s[-1:] in units), default=None)


def versions(*more: str) -> dict[str, str]:
    """Returns the versions of Python and of the packages that figures depend on.

    Args:
      more: packages that this run used beside them.
    """
    packages = ("jax", "jaxlib", "flax", "transformers", "numpy", *more)
    return {"python": platform.python_version()} | {p: importlib.metadata.version(p) for p in packages}


def commit(root: Path = ROOT) -> dict[str, Any] | None:
    """Returns the commit that `root` is at and whether its files differ from it; None where there is no repository."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return {"hash": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def heading(program: str, arguments: Sequence[str] | None, settings: Mapping[str, Any], *packages: str) -> dict:
    """Returns what a measured file begins with.

    No path of this machine stands in it: see `told_paths`. `code` has the hash of each file of the project that was
    imported, up to the moment when `write_json` writes the report.

    Args:
      program: the module that ran.
      arguments: its command line; None for this process's own.
      settings: its options, defaults included.
      packages: whose versions to tell beside the usual ones.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    return {
        "command": shlex.join(["python", "-m", program, *told_arguments(arguments)]),
        "device": describe_device(),
        "versions": versions(*packages),
        "commit": commit(),
        "settings": {k: told_setting(k, v) for k, v in settings.items()},
        "code": code_hashes(),
    }


def check_output(path: Path | None, *, overwrite: bool) -> None:
    """Refuses, before any work, a file that could not be written or must not be.

    Raises:
      FileExistsError: there is a file already.
      FileNotFoundError: its folder does not exist.
    """
    if path is None:
        return
    if not path.parent.is_dir():
        raise FileNotFoundError(f"folder of the output file does not exist: {path.parent}")
    if path.is_dir() or (path.exists() and not overwrite):
        raise FileExistsError(f"output file exists: {path} (--overwrite replaces it)")


def check_outputs(*paths: Path | None, plot: Path | None, overwrite: bool) -> None:
    """Refuses, before any work, files of one run that could not be written or must not be, a picture among them.

    Args:
      paths: to write; None for one that is not asked for.
      plot: picture to write, likewise.
      overwrite: files that exist may be replaced.

    Raises:
      ValueError: two are the same file.
      FileExistsError, FileNotFoundError: as of `check_output`.
      ImportError: a picture is asked for and matplotlib is not installed.
    """
    outputs = [path for path in (*paths, plot) if path is not None]
    for path in outputs:
        check_output(path, overwrite=overwrite)
    if len({path.absolute() for path in outputs}) < len(outputs):
        raise ValueError(f"output files must differ; got {', '.join(map(str, outputs))}")
    if plot is not None:
        _check_drawing("--plot")


def check_folder(folder: Path | None, *others: Path | None, overwrite: bool) -> None:
    """Refuses, before any work, a folder for report and picture that could not be made or must not be.

    Args:
      folder: to make; None for none.
      others: files that are asked for beside it; there must be none.
      overwrite: what the folder holds may be replaced.

    Raises:
      ValueError: files are asked for beside the folder.
      FileExistsError: the folder holds something.
      ImportError: matplotlib is not installed.
    """
    if folder is None:
        return
    if any(others):
        raise ValueError("output holds report and picture: give neither json nor plot beside it")
    if folder.exists() and not overwrite and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} must be absent or empty (--overwrite replaces what it holds)")
    _check_drawing("--output")


def _check_drawing(option: str) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError(f"{option} needs matplotlib: pip install 'jax_smash[plot]'")


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    """Writes a report whole or not at all, without paths of this machine; a number that is not finite is an error.

    Args:
      path: of the file.
      report: one that begins with `heading` names the files that were imported since, too.
    """
    report = told({**report, "code": code_hashes()} if "code" in report else report)
    write_whole(path, as_json(report))


def as_json(report: Mapping[str, Any]) -> bytes:
    """Returns a report as its file holds it; a number that is not finite is an error."""
    return (json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all: one that stands there stays as it is until then.

    Of several hosts the first one writes it.
    """
    if not is_first():
        return
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def print_table(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Prints some fields of rows on standard output."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column.replace("_", " "), justify="left" if column in WORDS else "right")
    for row in rows:
        table.add_row(*(_shown(row.get(column)) for column in columns))
    # A pipe has no width; eighty columns would break the numbers.
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Shows on standard error how much of long work is done; yields what is called after each piece of it."""
    console = Console(stderr=True)
    with Progress(
        console=console, transient=True, redirect_stdout=False, disable=not (console.is_terminal and is_first())
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def run_program(
    settings: Callable[..., Any],
    main: Callable[[Any], Any],
    *,
    compilation_cache: bool = True,
    several_hosts: bool = False,
) -> NoReturn:
    """Reads the command line, runs the program and ends the process; of several processes, an error ends all.

    What a user can cause is one line on standard error and status 1 (2 for a wrong command line).

    Args:
      settings: a dataclass with an option a field.
      main: takes the settings; a status other than None or 0 ends the process with it.
      compilation_cache: compiled programs may come from disk: not where compiling is what is measured.
      several_hosts: the program can run on several, and has the options that join them.
    """
    chosen, hosts = _read_both(settings) if several_hosts else (tyro.cli(settings), None)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    use_compilation_cache(compilation_cache)
    skip_absent_tpu()
    try:
        if hosts is not None:
            hosts.join()
            agree({f"--{name.replace('_', '-')}": value for name, value in dataclasses.asdict(chosen).items()})
        status = main(chosen)
    except (ValueError, TypeError, OSError, ImportError, MemoryError, RuntimeError, AssertionError) as error:
        if debugging() or (isinstance(error, AssertionError) and platform_problem(error) is None):
            raise
        line = f"error: {' '.join(describe(error).split())}"
        fail(line) if joined() else sys.exit(line)
    except KeyboardInterrupt:
        fail("", status=130)
    fail("", status=status) if status else sys.exit(status)


def _read_both(settings: Callable[..., Any]) -> tuple[Any, HostFlags]:
    """Returns a program's own options, and those that join the hosts."""
    fields = (("settings", tyro.conf.OmitArgPrefixes[settings]), ("hosts", tyro.conf.OmitArgPrefixes[HostFlags]))
    said = (settings.__doc__ or "").split("\n\n")[0]
    both: Any = tyro.cli(dataclasses.make_dataclass("Options", fields), description=said)
    return both.settings, both.hosts


def _shown(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value) and value:
        digits = max(0, 2 - math.floor(math.log10(abs(value))))
        return f"{value:,.{digits}f}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _processor() -> str:
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
