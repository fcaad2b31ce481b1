"""The page of versions names those that the package promises."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "versions.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PROMISED = {"Python": PROJECT["requires-python"]} | {
    name: next(d for d in PROJECT["dependencies"] if re.match(rf"{name}\b", d, re.IGNORECASE))
    for name in ("JAX", "Flax")
}


@pytest.mark.parametrize("name", PROMISED)
def test_the_oldest_version_on_the_page_is_the_oldest_that_is_promised(name):
    oldest = re.search(rf"^\| {name} \| ([\d.]+) \|", PAGE, re.MULTILINE)[1]
    assert PROMISED[name].endswith(f">={oldest}")
