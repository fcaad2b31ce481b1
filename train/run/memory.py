"""How a training program on a CPU takes its memory."""

from __future__ import annotations

import os
import sys

TUNABLES = {
    "glibc.malloc.hugetlb": 1,
    "glibc.malloc.mmap_threshold": 2**33,
    "glibc.malloc.trim_threshold": 2**34,
}
"""Large pages, and freed memory is kept: a step's gigabyte of temporaries is else given back and faulted in again, page
by page, at every step. Measured: a quarter more tokens a second."""


def use_large_pages() -> None:
    """Starts this program anew with an allocator that suits it, unless it is so already or is not on Linux.

    The allocator reads its settings before a program's first line runs, so they cannot be changed from within.
    """
    set_already = os.environ.get("GLIBC_TUNABLES", "")
    missing = [f"{name}={value}" for name, value in TUNABLES.items() if f"{name}=" not in set_already]
    if not missing or not sys.platform.startswith("linux"):
        return
    os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, [set_already, *missing]))
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
