"""The README's code runs, and what it says of commands and files is true."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


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
    assert "jax-smash generate" in first
    assert "pytest" in second


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_links_and_modules_named_in_the_documentation_exist(path):
    text = path.read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        if not link.startswith("http"):
            assert (path.parent / link).exists(), link
    for module in re.findall(r"python -m ((?:train|eval)\.[a-z_]+)\b", text):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists(), module
