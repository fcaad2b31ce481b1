"""Which of the project's files a figure depends on, and what stood in them."""

import functools
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("eval", "jax_smash", "pallas_kernels")


def code_hashes() -> dict[str, str]:
    """Returns the sha256 of every Python file of the project that this process has imported so far.

    Keys are paths relative to the project, sorted. A file is read once: its hash stays that of the first call that
    saw it, so a file that is edited while a long measurement runs keeps the hash of what ran.
    """
    found = {}
    for module in list(sys.modules.values()):
        # A program that was started with `-m` is `__main__` here; its spec has its real name.
        spec = getattr(module, "__spec__", None)
        if spec is None or spec.name.split(".")[0] not in PACKAGES or not str(spec.origin).endswith(".py"):
            continue
        name = spec.name.removesuffix(".__main__").replace(".", "/")
        if Path(spec.origin).name in ("__init__.py", "__main__.py"):
            name += f"/{Path(spec.origin).stem}"
        found[f"{name}.py"] = _sha256(spec.origin)
    return dict(sorted(found.items()))


def changed_files(hashes: Mapping[str, str], root: Path = ROOT) -> list[str]:
    """Returns the files that are no longer what they were, those that are gone included.

    Args:
      hashes: of a report.
      root: of the project as it is now.
    """
    return [name for name, digest in hashes.items() if digest_of(root / name) != digest]


def digest_of(path: Path) -> str | None:
    """Returns the sha256 of a file; None where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


@functools.cache
def _sha256(origin: str) -> str | None:
    return digest_of(Path(origin))
