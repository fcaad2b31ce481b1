"""JAX's persistent compilation cache, as the command line uses it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jax_smash.cli.compilation_cache import _prune
from jax_smash.cli.main import parse
from jax_smash.cli.program_options import programs_folder
from jax_smash.cli.resume import path_digest
from tests.compilations import COMMAND, COUNTING, COUNTS
from tests.hosts import Hosts

SMALL = """
from jax_smash.cli.compilation_cache import use_compilation_cache
use_compilation_cache()
def triple(x):
    return x * 3
print(jax.jit(lambda x: x + 1)(1), jax.jit(triple)(1))
"""
IN_FOLDER = SMALL.replace("()\n", "(programs=pathlib.Path('programs'))\n", 1).replace("\n", "\nimport pathlib\n", 1)
REFUSED = """
import tempfile
def refuse(**_):
    raise PermissionError(13, "Permission denied")
tempfile.TemporaryFile = refuse
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

    def small_(script=SMALL, **how):
        printed, programs, hits, said = child(COUNTING + script + COUNTS, **how)
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


@pytest.mark.slow
def test_programs_beside_a_checkpoint_go_with_it_and_another_shape_compiles_anew(child, model, tmp_path):
    here = shutil.copytree(model, tmp_path / "here")
    command = ("--prompt", "abc", "--max-new-tokens", "3", "--programs", "beside")
    first, programs, hits, _ = child(COMMAND, "generate", "--model", here, *command)
    assert (programs > 5, hits) == (True, 0)
    assert len(kept(here / "programs")) == programs
    assert path_digest(here) == path_digest(model)
    there = here.rename(tmp_path / "there")
    second, again, hits, said = child(COMMAND, "generate", "--model", there, *command)
    assert (second, again, hits) == (first, programs, programs)
    assert len(said) == 1  # The summary alone.
    _, more, hits, _ = child(COMMAND, "generate", "--model", there, *command, "--num-samples", "2")
    assert 0 < hits < more
    assert len(kept(there / "programs")) == programs + more - hits
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_programs_of_another_device_or_version_are_neither_read_nor_changed(small, tmp_path):
    small(IN_FOLDER)
    (device,) = (tmp_path / "programs").iterdir()
    (versions,) = device.iterdir()
    other, older = versions.rename(device / "jax-0.1-jaxlib-0.1"), device.with_name("tpu-v9")
    assert small(IN_FOLDER) == (PROGRAMS, 0, [])
    device.rename(older)
    assert small(IN_FOLDER) == (PROGRAMS, 0, [])
    assert [len(kept(path)) for path in (device, older / versions.name, older / other.name)] == [PROGRAMS] * 3


@pytest.mark.slow
def test_a_damaged_file_of_a_folder_is_told_once_and_mended_alone(small, tmp_path):
    small(IN_FOLDER)
    (damaged,) = tmp_path.rglob("jit_triple-*")
    damaged.write_bytes(damaged.read_bytes()[:50])  # As after a kill.
    assert small(IN_FOLDER)[1:] == (1, ["note: a compiled program that was kept is damaged; it is compiled anew"])
    assert small(IN_FOLDER) == (PROGRAMS, PROGRAMS, [])


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_read_and_a_full_disk_costs_one_line(child, small, tmp_path):
    _, _, (note,) = small(IN_FOLDER, blocks=1)
    assert note == "note: no more compiled programs are kept: File too large"
    assert kept(tmp_path) == []
    small(IN_FOLDER)
    before = kept(tmp_path)
    more = IN_FOLDER.replace("x * 3", "x * 4")
    assert child(COUNTING + REFUSED + more + COUNTS)[1:] == (PROGRAMS, PROGRAMS - 1, [])
    assert kept(tmp_path) == before


def test_a_folder_that_is_named_wins_over_jax_s_own_directory_and_not_over_its_switch(small, tmp_path):
    assert small(IN_FOLDER, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own")) == (PROGRAMS, 0, [])
    assert len(kept(tmp_path / "programs")) == len(kept(tmp_path)) == PROGRAMS
    _, _, said = small(IN_FOLDER, JAX_ENABLE_COMPILATION_CACHE="false")
    assert said == ["note: compiled programs are not kept: JAX_ENABLE_COMPILATION_CACHE is false"]


def test_beside_a_file_is_in_its_folder(tmp_path):
    (tmp_path / "model.gguf").write_text("")
    assert programs_folder("beside", lambda: tmp_path / "model.gguf") == tmp_path / "programs"
    assert programs_folder("~/x", lambda: tmp_path) == Path.home() / "x"


@pytest.mark.slow
def test_of_two_hosts_the_first_alone_writes_and_finds_all_again(model, tmp_path):
    here = shutil.copytree(model, tmp_path / "here")
    command = ["-c", COMMAND, "generate", "--model", here, "--prompt", "abc", "--max-new-tokens", 3]
    command += ["--programs", "beside"]
    counts = []
    for _ in range(2):
        first, other = Hosts(command, environment={"JAX_ENABLE_COMPILATION_CACHE": "true"}).ended()
        assert (first.status, other.status, other.errors) == (0, 0, ""), first.errors + other.errors
        counts.append(tuple(map(int, first.output.split()[-2:])))
        assert len(kept(here)) == counts[0][0] > 5
    assert counts == [(counts[0][0], 0), (counts[0][0], counts[0][0])]


def test_an_option_is_against_it(child, tmp_path):
    for command in (["generate", "--prompt", "a"], ["tune", "tiny"]):
        assert parse(command).kept.compilation_cache
        assert not parse([*command, "--no-compilation-cache"]).kept.compilation_cache
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


@pytest.mark.slow
def test_a_directory_that_cannot_be_written_is_read_and_says_nothing(child, small, tmp_path):
    assert child(COUNTING + REFUSED + SMALL + COUNTS)[1:] == (PROGRAMS, 0, [])
    assert kept(tmp_path) == []
    small()
    assert child(COUNTING + REFUSED + SMALL + COUNTS)[1:] == (PROGRAMS, PROGRAMS, [])


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
