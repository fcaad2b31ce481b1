import hashlib
import subprocess

import pytest

from eval.reports.code_at import code_at

FILES = {
    "eval/__init__.py": "",
    "eval/speed.py": "import numpy\nfrom eval import helper\nfrom jax_smash.draft.trees.tree import chain\n",
    "eval/helper.py": "def f():\n    import jax_smash.late\n",
    "eval/unused.py": "import eval.speed\n",
    "jax_smash/__init__.py": "",
    "jax_smash/late.py": "",
    "jax_smash/draft/__init__.py": "",
    "jax_smash/draft/trees/tree.py": "",
    "jax_smash/draft/other.py": "",
    "train/base.py": "",
}


def git(folder, *arguments):
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository whose files have changed since its commit."""
    root = tmp_path_factory.mktemp("project")
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    git(root, "init")
    git(root, "add", ".")
    git(root, "commit", "-m", "first")
    (root / "eval" / "speed.py").write_text("import eval.unused\n")
    return root


def test_all_that_a_program_leads_to_is_told_as_it_was_at_the_commit(repository):
    found = code_at(git(repository, "rev-parse", "HEAD"), "eval.speed", repository)
    assert set(found) == set(FILES) - {"eval/unused.py", "jax_smash/draft/other.py", "train/base.py"}
    assert list(found) == sorted(found)
    for name, digest in found.items():
        assert digest == hashlib.sha256(FILES[name].encode()).hexdigest()


def test_an_unknown_commit_or_program_is_told(repository):
    with pytest.raises(ValueError, match="commit must be one of this repository; got 0123"):
        code_at("0123", "eval.speed", repository)
    with pytest.raises(ValueError, match=r"program must be one of commit HEAD; got eval\.gone"):
        code_at("HEAD", "eval.gone", repository)
