"""JAX's persistent compilation cache, on by default: a program that was compiled once starts at once the next time."""

import contextlib
import hashlib
import os
import platform
import re
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from jax_smash.cli.program_options import VERSIONS

MOST_BYTES = 2**30
"""Of the default directory. Where it holds more, programs that were not used for longest go."""

READING = "Error reading persistent compilation cache entry"
WRITING = "Error writing persistent compilation cache entry"


def use_compilation_cache(use: bool = True, programs: Path | None = None) -> None:
    """Lets JAX keep compiled programs on disk, from now on and in this process; or not to, where `use` is false.

    JAX's own settings win: JAX_COMPILATION_CACHE_DIR names another directory, JAX_ENABLE_COMPILATION_CACHE=false keeps
    nothing. A directory that cannot be made or written, a full disk and a damaged file cost a line on stderr at most.

    Args:
      use: keep them.
      programs: folder that wins over JAX_COMPILATION_CACHE_DIR, with a folder in it for devices and versions like
        these: JAX takes its devices now. None for the user's cache directory.
    """
    import jax

    if not use:
        jax.config.update("jax_enable_compilation_cache", False)
    if not jax.config.jax_enable_compilation_cache:  # type: ignore[attr-defined]
        if use and programs is not None:
            _say("compiled programs are not kept: JAX_ENABLE_COMPILATION_CACHE is false")
        return
    chosen: str | None = None if programs else jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    directory = programs / made_for() if programs else Path(chosen) if chosen else default_directory()
    writable = True
    if "://" not in (chosen or ""):  # A bucket is JAX's affair.
        try:
            writable = _prepared(directory)
        except OSError as error:
            _say(f"compiled programs are not kept: {directory}: {error.strerror or error}")
            jax.config.update("jax_enable_compilation_cache", False)
            return
    if not chosen:
        jax.config.update("jax_compilation_cache_dir", str(directory))
    if programs:
        _go_by_content()
    elif not chosen:
        _prune(directory)
    _keep_everything(writable)
    _Watch(None if chosen else directory).begin()


def default_directory() -> Path:
    """Returns where programs are kept: a folder for processors like this one, for which they were made."""
    from jax_smash.costs.store import user_directory

    return user_directory("compiled") / f"{platform.machine() or 'unknown'}-{_processor_digest()}"


def made_for() -> Path:
    """Returns the folders that say what programs kept now are for: the kind of device, and the versions of JAX."""
    import jax
    import jaxlib

    device = jax.devices()[0]
    processor = f"cpu-{platform.machine() or 'unknown'}-{_processor_digest()}"
    kind = processor if device.platform == "cpu" else re.sub("[^a-z0-9]+", "-", device.device_kind.lower()).strip("-")
    return Path(kind, VERSIONS.format(jax=jax.__version__, jaxlib=jaxlib.__version__))


def _go_by_content() -> None:
    """Has programs found wherever their folder lies: XLA's caches of kernels would make its path a part of the key."""
    import jax

    if "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES" not in os.environ:
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


def _keep_everything(writable: bool) -> None:
    """Has programs kept that compile in no time and are small, too: a command has dozens of them."""
    import jax

    if not writable:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", float("inf"))
    elif "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES" not in os.environ:
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _prepared(directory: Path) -> bool:
    """Makes a directory; returns whether files can be written there.

    Raises:
      OSError: it cannot be made, or is no directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    os.scandir(directory).close()
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(512))
    except OSError:
        return False  # What others have put there can still be read.
    return True


def _prune(directory: Path, most: int = MOST_BYTES) -> None:
    """Removes the files that were not used for longest where all are more than `most` bytes, down to three quarters."""
    found = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                found.append((max(status.st_atime, status.st_mtime), status.st_size, entry.path))
    total = sum(size for _, size, _ in found)
    if total <= most:
        return
    for _, size, path in sorted(found):
        if total <= most * 3 // 4:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size


class _Watch:
    """Hears what JAX warns of its cache, and sees to it that the next run is not slowed down or warned again."""

    def __init__(self, directory: Path | None):
        """Takes the directory from which damaged files are removed; None for one that JAX's own setting names."""
        self._directory, self._began = directory, time.time()
        self._show: Any = None
        self._told = False

    def begin(self) -> None:
        """Hears warnings from now on. All others are shown as before."""
        self._show, warnings.showwarning = warnings.showwarning, self._heard

    def _heard(
        self, message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        text = str(message)
        if text.startswith(READING):
            self._remove(text)
            self._tell("a compiled program that was kept is damaged; it is compiled anew")
        elif text.startswith(WRITING):
            _keep_everything(writable=False)
            self._remove(text, since=self._began)  # One of these was written in part.
            reason = re.search(r"\[Errno \d+\] ([^:]+)", text)
            self._tell(f"no more compiled programs are kept: {reason[1] if reason else text}")
        else:
            self._show(message, category, filename, lineno, file, line)

    def _remove(self, text: str, since: float = 0.0) -> None:
        """Removes what is kept of the program that a warning names."""
        named = re.search(r"for '([\w.-]+)", text)
        for path in self._directory.glob(f"{named[1] if named else ''}*-cache") if self._directory else ():
            with contextlib.suppress(OSError):
                if path.stat().st_mtime >= since:
                    path.unlink()

    def _tell(self, text: str) -> None:
        if not self._told:
            _say(text)
        self._told = True


def _say(text: str) -> None:
    hosts = sys.modules.get("jax_smash.hosts")  # Not imported, there are no others.
    if hosts is None or hosts.is_first():
        print(f"note: {text}", file=sys.stderr, flush=True)


def _processor_digest() -> str:
    """Returns a few letters that stand for the processor's instructions and the number of cores.

    JAX takes all CPUs for one; a program for another one may run slowly, or not at all.
    """
    from jax_smash.costs.store import CPU_INFO, cores

    lines = CPU_INFO.read_text(errors="replace").splitlines() if CPU_INFO.exists() else []
    names = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    told = [next((line for line in lines if line.startswith(name)), "") for name in names]
    return hashlib.sha256("\n".join([*told, platform.processor(), str(cores())]).encode()).hexdigest()[:8]
