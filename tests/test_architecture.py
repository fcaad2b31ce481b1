"""The import directions that docs/architecture.md draws."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
LAYERS = [
    {"pytree", "shapes", "config", "chips", "finish", "sharding", "tasks", "platform", "tracing", "threshold"},
    {"hosts"},
    {"cpu"},
    {"cache"},
    {"protocols"},
    {"automaton", "attention", "quantise"},
    {"sampling"},
    {"models"},
    {"objectives", "plan"},
    {"smash"},
    {"checkpoints"},
    {"costs"},
    {"draft"},
    {"decode"},
    {"loading"},
    {"ladder", "applied", "saving", "sparse"},
    {"methods"},
    {"planning", "serve"},
    {"cli"},
]
"""A module may import its own layer's package and the layers before it."""


def imported(path: Path) -> set[str]:
    """Returns the dotted names of all modules that a file imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def rank(part: str) -> int:
    for i, layer in enumerate(LAYERS):
        if part in layer:
            return i
    raise AssertionError(f"jax_smash/{part} stands in no layer: give it one here and in docs/architecture.md")


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "jax_smash").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", files("jax_smash"), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_in_the_library_point_down(path):
    part = part_of(path)
    if part.startswith("__"):
        return
    for name in imported(path):
        pieces = name.split(".")
        if pieces[0] != "jax_smash" or len(pieces) < 2 or pieces[1].startswith("__"):
            continue
        other = pieces[1]
        assert other == part or rank(other) < rank(part), f"{path.name} imports {name}, which stands above it"


@pytest.mark.parametrize("path", files("jax_smash") + files("pallas_kernels"), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_library_imports_neither_torch_nor_programs(path):
    roots = {name.split(".")[0] for name in imported(path)}
    assert not roots & {"torch", "train", "eval", "tests"}


@pytest.mark.parametrize("path", files("pallas_kernels"), ids=lambda p: str(p.relative_to(ROOT)))
def test_kernels_do_not_import_the_library(path):
    assert "jax_smash" not in {name.split(".")[0] for name in imported(path)}


def test_train_and_eval_do_not_import_each_other():
    for package, other in (("train", "eval"), ("eval", "train")):
        for path in files(package):
            assert other not in {name.split(".")[0] for name in imported(path)}, path


def test_a_forbidden_import_would_be_seen(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    import torch.nn\n    from jax_smash.cli import main\n")
    assert {"torch.nn", "jax_smash.cli", "jax_smash.cli.main"} <= imported(bad)


def test_the_page_draws_the_layers_and_has_a_room_for_each():
    drawn = set(re.findall(r"\w+", re.search(r"flowchart BT\n(.*?)```", PAGE, re.DOTALL)[1]))
    rooms = PAGE[PAGE.index("| Room |") : PAGE.index("| In `jax_smash/draft/`")]
    for part in sorted(set.union(*LAYERS)):
        assert part in drawn, f"the diagram lacks {part}"
        assert re.search(rf"`(jax_smash/)?{part}(/|\.py)`", rooms), f"no room for {part}"


@pytest.mark.parametrize("folder", ["jax_smash/draft", "train", "eval"])
def test_the_modules_that_the_page_names_exist(folder):
    table = PAGE[PAGE.index(f"| In `{folder}/` |") :].split("\n\n")[0]
    named = [name for line in table.splitlines()[2:] for name in re.findall(r"`([\w/]+)`", line.split("|")[1])]
    assert len(named) > 10
    for name in named:
        assert (ROOT / folder / f"{name}.py").is_file() or (ROOT / folder / name).is_dir(), name
