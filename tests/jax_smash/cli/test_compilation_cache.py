"""JAX's persistent compilation cache, as the command line uses it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jax_smash.cli.compilation_cache import _prune
from jax_smash.cli.main import parse

COUNTING = """
import collections, sys
import jax
counts = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: counts.update([event.rpartition("/")[2]]))
"""
COUNTS = """
print(counts["compile_requests_use_cache"], counts["cache_hits"])
"""
COMMAND = COUNTING + "from jax_smash.cli import main; print(main(sys.argv[1:]))" + COUNTS
SMALL = """
from jax_smash.cli.compilation_cache import use_compilation_cache
use_compilation_cache()
print(jax.jit(lambda x: x + 1)(1), jax.jit(lambda x: x * 3)(1))
"""
PROGRAMS = 2
"""That `SMALL` compiles."""


def kept(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*-cache"))


@pytest.fixture
def child(environment, tmp_path):
    """Runs a script that ends with counts: what it printed before, programs, those from disk, lines of stderr."""

    def child_(script: str, *args: object, blocks: int | None = None, **variables: str):
        command = [sys.executable, "-c", script, *map(str, args)]
        if blocks is not None:
            command = ["sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh", *command]
        result = subprocess.run(
            command,
            env=environment | {"XDG_CACHE_HOME": str(tmp_path / "cache")} | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        *printed, numbers = result.stdout.splitlines()
        return printed, *map(int, numbers.split()), result.stderr.splitlines()

    return child_


@pytest.fixture
def small(child):
    """Runs two small programs, and checks that they are right whatever becomes of the cache."""

    def small_(**how):
        printed, programs, hits, said = child(COUNTING + SMALL + COUNTS, **how)
        assert printed == ["2 3"]
        return programs, hits, said

    return small_


def test_every_program_of_a_second_command_comes_from_the_first_s_files(child, model, tmp_path):
    command = ("generate", "--model", model, "--prompt", "abc", "--max-new-tokens", "3", "--regex", "[a-z]+")
    first, programs, hits, _ = child(COMMAND, *command)
    assert first[-1] == "0"
    assert (programs > 5, hits) == (True, 0)
    assert len(kept(tmp_path / "cache" / "jax-smash" / "compiled")) == programs
    second, again, hits, said = child(COMMAND, *command)
    assert (second, again, hits) == (first, programs, programs)
    assert len(said) == 1  # The summary alone.


def test_an_option_is_against_it(child, tmp_path):
    for command in (["generate", "--prompt", "a"], ["tune", "tiny"]):
        assert parse(command).compilation_cache
        assert not parse([*command, "--no-compilation-cache"]).compilation_cache
    assert child(COUNTING + SMALL.replace("()\n", "(False)\n", 1) + COUNTS)[1:] == (0, 0, [])
    assert not (tmp_path / "cache").exists()


def test_a_damaged_file_is_told_once_and_mended(small, tmp_path):
    small()
    for file in kept(tmp_path):
        file.write_bytes(file.read_bytes()[:50])  # As after a kill.
    _, hits, said = small()
    assert (hits, len(said)) == (0, 1)
    assert said[0].startswith("note: a compiled program that was kept is damaged")
    assert small() == (PROGRAMS, PROGRAMS, [])


def test_jax_s_own_variables_win(small, tmp_path):
    own = tmp_path / "own"
    assert small(JAX_COMPILATION_CACHE_DIR=str(own)) == (PROGRAMS, 0, [])
    assert small(JAX_ENABLE_COMPILATION_CACHE="false") == (0, 0, [])
    assert len(kept(own)) == PROGRAMS
    assert not (tmp_path / "cache").exists()


def test_a_directory_that_cannot_be_made_costs_one_line(small, tmp_path):
    (tmp_path / "file").write_text("precious")
    _, _, (note,) = small(XDG_CACHE_HOME=str(tmp_path / "file"))
    assert note.startswith(f"note: compiled programs are not kept: {tmp_path}/file/jax-smash/")
    assert note.endswith(": Not a directory")
    assert (tmp_path / "file").read_text() == "precious"


def test_a_full_disk_costs_one_line_and_leaves_no_damaged_file(small, tmp_path):
    _, _, (note,) = small(blocks=1)  # Files end after 512 bytes.
    assert note == "note: no more compiled programs are kept: File too large"
    assert kept(tmp_path) == []
    assert small() == (PROGRAMS, 0, [])


def test_a_directory_that_cannot_be_written_is_read_and_says_nothing(child, small, tmp_path):
    refused = """
import tempfile
def refuse(**_):
    raise PermissionError(13, "Permission denied")
tempfile.TemporaryFile = refuse
"""
    assert child(COUNTING + refused + SMALL + COUNTS)[1:] == (PROGRAMS, 0, [])
    assert kept(tmp_path) == []
    small()
    assert child(COUNTING + refused + SMALL + COUNTS)[1:] == (PROGRAMS, PROGRAMS, [])


def test_what_was_used_last_is_kept_where_the_directory_is_too_large(tmp_path):
    for i in range(8):
        (tmp_path / f"{i}-cache").write_bytes(bytes(10))
        os.utime(tmp_path / f"{i}-cache", (i, i))
    _prune(tmp_path, most=80)
    assert len(kept(tmp_path)) == 8
    _prune(tmp_path, most=79)
    assert [path.name for path in kept(tmp_path)] == [f"{i}-cache" for i in (3, 4, 5, 6, 7)]


def test_other_warnings_are_shown_as_before(monkeypatch, tmp_path):
    import warnings

    from jax_smash.cli.compilation_cache import _Watch

    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: shown.append(str(message)))
    _Watch(tmp_path).begin()
    warnings.showwarning("a shape is odd", UserWarning, "f", 1)
    assert shown == ["a shape is odd"]
