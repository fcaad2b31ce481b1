"""What the package promises about itself."""

import tomllib
from pathlib import Path

import pytest

import jax_smash

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_public_name_is_there():
    for name in jax_smash.__all__:
        assert getattr(jax_smash, name) is not None
    assert set(jax_smash.__all__) <= set(dir(jax_smash))


def test_versions_agree():
    assert PROJECT["version"] == jax_smash.__version__
    assert f"## {jax_smash.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_oldest_jax_in_the_checks_is_the_oldest_that_is_promised():
    promised = next(d for d in PROJECT["dependencies"] if d.startswith("jax>="))
    assert f"jax=={promised.removeprefix('jax>=')}" in (ROOT / ".ci" / "oldest.txt").read_text().splitlines()


@pytest.mark.parametrize(("folder", "most"), [("tiny", 24e6), ("predictors", 12e6), ("drafters", 24e6)])
def test_what_is_shipped_is_small(folder, most):
    files = [f for f in (ROOT / "jax_smash" / "assets" / folder).rglob("*") if f.is_file()]
    assert files
    assert sum(f.stat().st_size for f in files) <= most
