"""Experiments are short, have the same parts, and stand in their index."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "docs" / "experiments"
INDEX = (FOLDER / "README.md").read_text()
FILES = sorted(path for path in FOLDER.iterdir() if path.name != "README.md")
PARTS = ["Question", "Prediction", "Setup", "Verdict", "Superseded by"]
LONGEST_FILE, LONGEST_LINE = 40, 120


def faults(name: str, text: str) -> list[str]:
    """Returns what keeps a text from being the record of an experiment."""
    lines = text.splitlines()
    parts = re.findall(r"^\*\*(.+?)\.\*\* \S", text, re.MULTILINE)
    setup = text.partition("**Setup.**")[2].partition("**Verdict.**")[0]
    prose = [line for line in re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines() if not line.startswith("|")]
    found = {
        "its name is a number and words": re.fullmatch(r"\d{3}-[a-z0-9-]+\.md", name),
        "its title begins with its number": lines[0].startswith(f"# {name[:3]}. "),
        f"it has {PARTS} in this order, of which only the prediction may be missing": (
            [part for part in parts if part in PARTS] in (PARTS, [part for part in PARTS if part != "Prediction"])
        ),
        "its setup names a commit": re.search(r"\b[0-9a-f]{7}\b|[Cc]ommits?\b", setup),
        "it has a table": re.search(r"^\|(?:-+\|)+$", text, re.MULTILINE),
        f"it has {LONGEST_FILE} lines at most": len(lines) <= LONGEST_FILE,
        f"a line of prose has {LONGEST_LINE} characters at most": max(map(len, prose)) <= LONGEST_LINE,
    }
    return [fault for fault, holds in found.items() if not holds]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_an_experiment_has_its_parts_and_is_short(path):
    assert not faults(path.name, path.read_text())


def test_every_fault_of_an_experiment_is_found():
    path = FILES[0]
    name, text = path.name, path.read_text()
    for part in PARTS:
        assert faults(name, text.replace(f"**{part}.**", part)) or part == "Prediction"
    assert faults("experiment.md", text)
    assert faults(name, text.replace("# 001.", "# 002."))
    assert faults(name, text.replace("|---", "|"))
    assert faults(name, re.sub(r"[Cc]ommits?|[0-9a-f]{7}", "", text))
    assert faults(name, text + "\n" * LONGEST_FILE)
    assert faults(name, text + "word " * LONGEST_LINE)


def test_the_index_names_every_experiment_once_under_its_number():
    entries = re.findall(r"^\| \[(\d{3})\]\(([\w-]+\.md)\) \S.* \| \S.* \|$", INDEX, re.MULTILINE)
    assert sorted(name for _, name in entries) == [path.name for path in FILES]
    assert all(name.startswith(number) for number, name in entries)


def test_numbers_run_from_one_without_a_gap():
    assert [path.name[:3] for path in FILES] == [f"{i:03}" for i in range(1, len(FILES) + 1)]
