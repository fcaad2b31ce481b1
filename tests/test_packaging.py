"""What the package promises about itself."""

import runpy
import tomllib
import zipfile
from pathlib import Path

import pytest

import jax_smash

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DRAFTER = "eagle.safetensors"
"""What the first of some wheels lacks."""


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


@pytest.fixture
def wheel(tmp_path):
    """A file with what a wheel holds, but for its metadata's content; nothing is compressed."""
    path = tmp_path / "jax_smash-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("jax_smash-1.dist-info/METADATA", "")
        for package in ("jax_smash", "pallas_kernels"):
            for file in (ROOT / package).rglob("*"):
                if file.is_file() and "__pycache__" not in file.parts and file.name != DRAFTER:
                    made.write(file, file.relative_to(ROOT))
    return path


def test_a_wheel_needs_the_drafters_and_has_no_more_bytes_than_it_may(wheel, capsys):
    check = runpy.run_path(str(ROOT / ".ci" / "check_wheel.py"))["main"]
    (file,) = (ROOT / "jax_smash/assets/drafters").rglob(DRAFTER)
    with pytest.raises(SystemExit, match=r"strays \[\], missing \['.*smollm2/eagle/eagle.safetensors'\]"):
        check(str(wheel))
    with zipfile.ZipFile(wheel, "a") as made:
        made.write(file, file.relative_to(ROOT))
    check(str(wheel))
    assert capsys.readouterr().out.endswith(" MB\n")
    with zipfile.ZipFile(wheel, "a") as made:
        made.writestr("jax_smash/assets/more", bytes(60_000_000 - wheel.stat().st_size))
    with pytest.raises(SystemExit, match=r"60\.0 MB, more than 60"):
        check(str(wheel))
