"""`slow_cases.txt` names tests that there are, and leaves a case of each."""

import ast
import functools
import pathlib

from tests.conftest import SLOW_CASES

ROOT = pathlib.Path(__file__).parent.parent
CASES = sorted(SLOW_CASES - {""})


@functools.cache
def defined_in(file):
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_case_is_one_of_a_test_that_there_is():
    for case in CASES:
        file, test = case.split("::")
        name, _, ids = test.partition("[")
        assert name in defined_in(file), case
        # A test without cases would not run at all: it has a marker, where it stands.
        assert ids.endswith("]"), case
    assert len(CASES) > 100


def test_the_list_is_in_order():
    lines = (ROOT / "tests/slow_cases.txt").read_text().splitlines()
    assert lines == sorted(set(lines))
