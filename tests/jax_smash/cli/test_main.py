"""The program as such: help, errors, statuses."""

import importlib.metadata
import re
import subprocess
import sys

import pytest

import jax_smash
from jax_smash.cli import main as program
from jax_smash.cli.errors import UsageError, describe, platform_problem
from jax_smash.cli.main import parse, run

COMMANDS = ("generate", "info", "convert", "tune")


class Failing:
    """A command that fails as told."""

    def __init__(self, error: BaseException):
        self.error = error

    def run(self) -> None:
        raise self.error


def test_help_comes_without_loading_anything_heavy(environment, tmp_path):
    script = (
        "import sys; from jax_smash.cli import main; main(['generate', '--help']); "
        "print([m for m in ('jax', 'flax', 'numpy', 'transformers', 'torch') if m in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stderr == "[]\n"
    assert "--repetition-penalty" in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(capsys, command):
    assert program([command, "--help"]) == 0
    assert f"usage: jax-smash {command}" in capsys.readouterr().out


def test_without_a_command_help_is_shown_and_nothing_done(capsys):
    assert program([]) == 2
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)


def test_the_version_is_told(capsys):
    assert program(["--version"]) == 0
    assert capsys.readouterr().out == f"jax-smash {jax_smash.__version__}\n"


def test_wrong_usage_is_one_line_that_names_what_is_wrong(capsys):
    for arguments, said in (
        (["generat"], "generat"),
        (["generate", "--temprature", "1"], "--temprature"),
        (["generate", "--temprature", "1"], "--temperature"),
        (["generate", "--top-k", "many"], "--top-k"),
        (["info"], "MODEL"),
        (["generate", "a", "story"], "Unrecognized options: a, story; the text to continue belongs to --prompt"),
        (["convert", "a", "b", "--to", "gguf"], "gguf"),
    ):
        assert program(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("jax-smash: error: ")
        assert len(captured.err.splitlines()) == 1
        assert said in captured.err
        assert not set(captured.err) & set("│╭╰─")
        assert not re.search("---|full helptext", captured.err)


def test_stop_strings_may_be_repeated_or_listed():
    command = parse(["generate", "--prompt", "a", "--stop", "x", "y z", "--stop", "\n"])
    assert command.stopping.stops() == ("x", "y z", "\n")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ValueError("budget must be at most 8;\n  got 9"), 1, "budget must be at most 8; got 9"),
        (UsageError("--a must be 1; got 2"), 2, "--a must be 1; got 2"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), 1, "a.txt: No such file or directory"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (KeyError("x"), 1, "KeyError: 'x' (JAX_SMASH_DEBUG=1 shows where)"),
        (ValueError(), 1, "ValueError: no message (JAX_SMASH_DEBUG=1 shows where)"),
        (MemoryError(), 1, "out of memory; a smaller --batch-size"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_is_one_line_and_a_status(capsys, error, status, said):
    assert run(Failing(error)) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"jax-smash: error: {said}")
    assert len(captured.err.splitlines()) == 1


def test_notes_of_an_error_are_told():
    error = ValueError("bad")
    error.add_note("2 finished completions are in out.jsonl.partial")
    assert describe(error) == "bad; 2 finished completions are in out.jsonl.partial"


def test_memory_that_the_device_lacks_is_told_with_what_helps(capsys):
    import jax

    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nMore\nlines")
    assert run(Failing(error)) == 1
    err = capsys.readouterr().err
    assert err.startswith("jax-smash: error: Out of memory allocating 9 bytes.; a smaller --batch-size")
    assert "lines" not in err


def test_a_platform_that_is_not_there_is_named_with_what_installs_it(environment, tmp_path):
    absent = environment | {"JAX_PLATFORMS": "cuda"}
    for command in (["jax_smash", "generate", "--prompt", "a"], ["eval.invariance", "--draws", "1"]):
        result = subprocess.run(
            [sys.executable, "-m", *command], env=absent, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (result.returncode, result.stdout) == (1, "")
        assert len(result.stderr.splitlines()) == 1
        assert "error: JAX cannot use the platform 'cuda' that JAX_PLATFORMS names" in result.stderr
        if not any("cuda" in point.name for point in importlib.metadata.entry_points(group="jax_plugins")):
            assert "pip install 'jax_smash[cuda]'" in result.stderr


def test_an_error_that_is_not_of_the_platform_stays_what_it_is(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert platform_problem(RuntimeError("bad")) is None
    assert describe(AssertionError("bad")) == "AssertionError: bad (JAX_SMASH_DEBUG=1 shows where)"


def test_a_closed_pipe_is_no_error(capsys):
    assert run(Failing(BrokenPipeError())) == 141
    assert capsys.readouterr().err == ""


def test_a_traceback_is_shown_on_request(monkeypatch):
    monkeypatch.setenv("JAX_SMASH_DEBUG", "1")
    with pytest.raises(ValueError, match="bad"):
        run(Failing(ValueError("bad")))
