"""The pages of the API reference describe every public name, and nothing that cannot be imported."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import jax_smash
import pallas_kernels.sparse_attention
import pallas_kernels.tree_attention

FOLDER = Path(__file__).parent.parent.parent / "docs" / "api"
PAGES = sorted(FOLDER.glob("*.md"))
DESCRIBED = re.compile(r"^\.\. (?:auto(?:class|function)|py:data):: (\S+)$", re.MULTILINE)


def described() -> list[str]:
    return [name for page in PAGES for name in DESCRIBED.findall(page.read_text(encoding="utf-8"))]


def imported(name: str) -> Any:
    """Returns what a dotted name stands for.

    Raises:
      ImportError, AttributeError: nothing.
    """
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


@pytest.mark.parametrize(
    "package", [jax_smash, pallas_kernels.tree_attention, pallas_kernels.sparse_attention], ids=lambda p: p.__name__
)
def test_every_public_name_is_described(package):
    assert {f"{package.__name__}.{name}" for name in package.__all__} <= set(described())


def test_the_first_page_lists_every_public_name():
    listed = re.findall(r"^   (\w+)$|\[`(\w+)`\]\(", (FOLDER / "index.md").read_text(), re.MULTILINE)
    assert sorted(name or linked for name, linked in listed) == sorted(jax_smash.__all__)


def test_nothing_is_described_twice():
    names = described()
    assert len(names) > 200
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", described())
def test_what_a_page_describes_can_be_imported(name):
    assert imported(name) is not None


@pytest.mark.parametrize("name", ["jax_smash.generator", "jax_smash.drafts.tree.chain"])
def test_a_name_that_is_gone_would_be_seen(name):
    with pytest.raises((ImportError, AttributeError)):
        imported(name)


def test_every_page_is_in_the_contents():
    contents = (FOLDER.parent / "index.md").read_text()
    for page in [*PAGES, *FOLDER.parent.glob("*.md")]:
        name = page.relative_to(FOLDER.parent).with_suffix("").as_posix()
        assert name == "index" or f"\n{name}\n" in contents, name
