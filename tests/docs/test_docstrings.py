"""What docstrings say of arguments and fields is true: every name that they explain is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FILES = [
    path for part in ("jax_smash", "pallas_kernels", "train", "eval") for path in sorted((ROOT / part).rglob("*.py"))
]
SECTIONS = {"Args", "Returns", "Raises", "Attributes"}


def sections(docstring: str) -> dict[str, str]:
    """Returns the indented text behind each line that is a word and a colon."""
    return dict(re.findall(r"^(\w+):\n((?:[ ]{2}.*\n|\n)+)", docstring + "\n", re.MULTILINE))


def explained(section: str) -> list[str]:
    """Returns the names before a colon; several may share one explanation."""
    entries = re.findall(r"^  (\*{0,2}\w+(?:, \*{0,2}\w+)*): ", section, re.MULTILINE)
    return [name for entry in entries for name in re.findall(r"\w+", entry)]


def parameters(node: ast.AST) -> set[str]:
    """Returns the parameters of a function, or of a class's `__init__`."""
    if isinstance(node, ast.ClassDef):
        made = [x for x in node.body if isinstance(x, ast.FunctionDef) and x.name == "__init__"]
        return parameters(made[0]) if made else set()
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    taken = node.args
    rest = [x for x in (taken.vararg, taken.kwarg) if x]
    return {x.arg for x in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs, *rest)}


def fields(node: ast.AST) -> set[str]:
    """Returns the names that a class annotates, assigns or defines, and those that its methods give to `self`."""
    if not isinstance(node, ast.ClassDef):
        return set()
    own = {x.target.id for x in node.body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)}
    own |= {t.id for x in node.body if isinstance(x, ast.Assign) for t in x.targets if isinstance(t, ast.Name)}
    own |= {x.name for x in node.body if isinstance(x, ast.FunctionDef)}
    stored = [x for x in ast.walk(node) if isinstance(x, ast.Attribute) and isinstance(x.ctx, ast.Store)]
    return own | {x.attr for x in stored if isinstance(x.value, ast.Name) and x.value.id == "self"}


def faults(source: str) -> list[str]:
    """Returns what docstrings explain that is not there, and sections that have no known title or no names."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        said = sections(ast.get_docstring(node) or "")
        name = getattr(node, "name", "the module")
        found += [f"{name}: section {title!r}" for title in said.keys() - SECTIONS]
        for title, known in (("Args", parameters), ("Attributes", fields)):
            names = explained(said.get(title, ""))
            found += [f"{name}: {title} without a name"] if title in said and not names else []
            found += [f"{name}: {x!r} of {title}" for x in names if x not in known(node)]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_docstring_explains_only_what_is_there(path):
    assert not faults(path.read_text(encoding="utf-8"))


SOUND = '''
def f(key, value, *, width):
    """Does it.

    Args:
      key, value: of each entry.
      width: in tokens: at most this many.

    Raises:
      ValueError: the width is negative.
    """

class C:
    """Holds it.

    Attributes:
      size: in bytes.
    """

    size: int
'''


def test_sound_docstrings_have_no_faults():
    assert not faults(SOUND)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(key, value,", "def f(key, values,"),
        ("width: in tokens", "widths: in tokens"),
        ("    size: int", "    length: int"),
        ("    Raises:", "    Errors:"),
        ("    Attributes:", "    Args:"),
        ("      size: in bytes.", "      in bytes."),
    ],
)
def test_every_fault_of_a_docstring_is_found(before, after):
    assert before in SOUND
    assert faults(SOUND.replace(before, after))
