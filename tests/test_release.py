"""What the script of releases refuses, before it builds anything."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DATED = "# Changelog\n\n## 1.2.3 (2026-01-31)\n\n- Something.\n\n## 1.2.2 (2025-12-31)\n"


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """A repository of one commit that can be released as 1.2.3."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "release", tmp_path / ".ci")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "jax_smash"\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(DATED)
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def commit(folder):
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "all")


def release(folder, *words):
    done = subprocess.run([folder / ".ci" / "release", *(words or ["--check"])], capture_output=True, text=True)
    assert not (folder / "dist").exists()
    return done.returncode, done.stdout, done.stderr.strip()


def test_a_clean_tree_whose_changelog_knows_the_version_can_be_released(checkout):
    status, output, errors = release(checkout)
    assert (status, errors) == (0, "")
    assert "version 1.2.3 of commit" in output


def test_a_tree_that_is_not_clean_is_refused(checkout):
    (checkout / "left.txt").write_text("left")
    assert release(checkout)[::2] == (1, "refused: the tree must be clean; commit or remove: ?? left.txt")


@pytest.mark.parametrize("heading", ["1.2.4 (2026-01-31)", "1.2.3 (unreleased)", "1.2.3", "1.2.30 (2026-01-31)"])
def test_a_changelog_without_the_version_and_its_day_is_refused(checkout, heading):
    (checkout / "CHANGELOG.md").write_text(DATED.replace("1.2.3 (2026-01-31)", heading))
    commit(checkout)
    status, _, errors = release(checkout)
    assert status == 1
    assert errors.endswith(f"must be '## 1.2.3 (YYYY-MM-DD)', as pyproject.toml has it; got '## {heading}'")


def test_a_version_that_has_a_tag_is_refused(checkout):
    git(checkout, "tag", "v1.2.3")
    assert release(checkout)[::2] == (1, "refused: the tag v1.2.3 is there already; raise the version")


def test_another_option_is_refused(checkout):
    assert release(checkout, "--upload")[::2] == (1, "refused: the only option is --check; got --upload")
