"""Scripts in an interpreter of their own: for limits and peaks that hold for a whole process."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux's /proc")

PEAK = """
import re
from pathlib import Path

import jax


def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


jax.device_put(jax.numpy.ones(8)).block_until_ready()
"""
"""The start of a script that measures memory: `peak()` is the most that the process has held so far, in bytes."""


def run(script: str, *arguments: object) -> str:
    """Runs a script in a fresh interpreter and returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
