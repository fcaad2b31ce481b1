"""Compiled programs of training that are kept in a folder."""

import json
import os
import subprocess
import sys

import pytest

from tests.compilations import COUNTING, COUNTS
from tests.compiling import QUICKLY
from tests.hosts import ROOT
from tests.train.corpus_files import make_packed
from tests.train.run.test_settings import FIELDS

BASE = f"""
{COUNTING}
from train.base import main
from train.run.program import run_program
try:
    run_program(main)
except SystemExit as end:
    assert not end.code, end.code
{COUNTS}
"""


def trained(folder, output, *words):
    """Trains in another process, whose caches are its own; returns its programs, and how many came from disk."""
    command = ["--config", "config.json", "--packed", "packed", "--tokenizer", "tokenizer", "--output", output, *words]
    variables = {"JAX_PLATFORMS": "cpu", **QUICKLY, "JAX_ENABLE_COMPILATION_CACHE": "true"}
    # A file: nothing can be kept in the user's cache directory, and nothing is said of it.
    variables |= {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "config.json")}
    result = subprocess.run(
        [sys.executable, "-c", BASE, *command],
        env=os.environ | variables,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "note:" not in result.stderr
    programs, hits = map(int, result.stdout.split()[-2:])
    return programs, hits


@pytest.mark.slow
def test_a_second_start_of_a_run_compiles_nothing(tmp_path):
    make_packed(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(FIELDS | {"steps": 3}))
    programs, hits = trained(tmp_path, "run", "--programs", "beside")
    assert (programs > 10, hits) == (True, 0)
    assert len([*(tmp_path / "run" / "programs").rglob("*-cache")]) == programs
    (tmp_path / "run" / "programs").rename(tmp_path / "kept")
    assert trained(tmp_path, "again", "--programs", "kept") == (programs, programs)
    assert not (tmp_path / "again" / "programs").exists()
