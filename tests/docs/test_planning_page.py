"""What the page of planning shows is what its commands print."""

import re
import shlex
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent.parent / "docs" / "planning.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```text\n\$ jax-smash (plan .*)\n([^`]*)```", PAGE)


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[shlex.split(command)[3] for command, _ in SHOWN])
def test_the_commands_of_the_page_print_what_it_shows(command, shown, capsys):
    from jax_smash.cli.main import main

    assert main(shlex.split(command)) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    for part in shown.strip().strip("…").split("…"):
        lines = part.strip("\n").splitlines()
        start = printed.index(lines[0])
        assert printed[start : start + len(lines)] == lines


def test_the_page_shows_commands():
    assert len(SHOWN) == PAGE.count("$ jax-smash") == 2
