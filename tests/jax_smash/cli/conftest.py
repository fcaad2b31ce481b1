"""A small checkpoint on disk, and the program run on it as a user runs it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compiling import QUICKLY
from tests.model_directory import write_model

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """The directory of a sound checkpoint of one layer, to decode with. Tests must not change it."""
    return write_model(tmp_path_factory.mktemp("model") / "sound", num_hidden_layers=1)


@pytest.fixture(scope="session")
def two_layers(tmp_path_factory) -> Path:
    """The same with two layers, to read and convert. Tests must not change it."""
    return write_model(tmp_path_factory.mktemp("model") / "sound")


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    """The environment of a shell in another directory, where nothing asks the network."""
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
        **QUICKLY,
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "200",
    }


@pytest.fixture
def default_interrupts():
    """SIGINT as a program finds it in a terminal: tests run in the background have it ignored, and pass that on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def start(environment, tmp_path, default_interrupts):
    """Starts the program in an empty directory; ends it where a test leaves it running.

    `blocks` is the longest file that it can write, in blocks of 512 bytes, to stand for a full disk; `variables` are
    added to its environment.
    """
    running = []

    def start_(*args, blocks=None, variables=None, **options) -> subprocess.Popen:
        command = [sys.executable, "-m", "jax_smash", *map(str, args)]
        if blocks is not None:
            command = ["sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh", *command]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        running.append(
            subprocess.Popen(command, cwd=tmp_path, env=environment | (variables or {}), text=True, **streams)
        )
        return running[-1]

    yield start_
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def run(start):
    """Runs the program to its end."""

    def run_(*args, **options) -> subprocess.CompletedProcess:
        process = start(*args, **options)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    return run_


@pytest.fixture
def called(call):
    """Runs the program in this process, for tests that look at what `run` returns."""

    def called_(*args) -> subprocess.CompletedProcess:
        return subprocess.CompletedProcess(args, *call(*args))

    return called_


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
    """Runs the program in this process, which costs no start: exit status, stdout, stderr."""
    from jax_smash.cli import main

    def call_(*args) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        status = main([str(a) for a in args])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call_
