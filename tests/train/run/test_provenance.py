"""What a card says of the code that made weights."""

import subprocess

import jax

from train.run.provenance import made_by


def git(folder, *arguments):
    name = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *name, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_card_names_the_commit_and_whether_files_differ_from_it(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert made_by(tmp_path).startswith(f"commit {head}; Python 3.")
    assert f" jax {jax.__version__}, jaxlib " in made_by(tmp_path)
    (tmp_path / "code.py").write_text("two")
    assert made_by(tmp_path).startswith(f"commit {head} with changes; ")


def test_code_outside_a_repository_is_known_by_its_version(tmp_path):
    assert made_by(tmp_path).startswith("jax_smash 0.")
    assert "outside a repository" in made_by(tmp_path)
