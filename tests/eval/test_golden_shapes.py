import json

import jax
import jax.numpy as jnp
import pytest

from eval import golden_shapes
from eval.exact.golden_cases import KEPT, Decoder
from eval.golden_shapes import PROMPTS, Settings, listed, loop_shapes, main
from jax_smash.decode.loop import start
from tests.interpreter import ROOT

STORED = json.loads((ROOT / "tests" / "golden" / "shapes.json").read_text())


@pytest.fixture(scope="module")
def decoder():
    return Decoder(STORED["settings"]["model"], PROMPTS)


def test_the_file_has_every_method():
    assert list(STORED["methods"]) == list(KEPT)


@pytest.mark.parametrize("method", KEPT)
def test_the_loop_takes_and_returns_its_golden_shapes(decoder, method):
    found = loop_shapes(decoder, method)
    for kind in ("params", "state"):
        assert found[kind] == STORED["every_method"][kind] | STORED["methods"][method][kind]


def test_an_array_is_listed_by_its_path_dtype_and_shape():
    tree = {"a": [jnp.zeros((2, 3)), jnp.zeros((), jnp.int8)], "key": jax.random.key(0)}
    assert listed(tree) == {"a/0": "float32[2,3]", "a/1": "int8[]", "key": "key<fry>[]"}


class Narrowing:
    """A start of decoding that returns half of the precision."""

    __name__ = "start"

    @staticmethod
    def eval_shape(*args):
        def narrow(path, leaf):
            narrowed = jax.tree_util.keystr(path, simple=True, separator="/") == "rows/last_hidden"
            return jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16 if narrowed else leaf.dtype)

        return jax.tree_util.tree_map_with_path(narrow, start.eval_shape(*args))


def test_a_program_that_changes_a_shape_is_named(decoder, monkeypatch):
    monkeypatch.setattr(golden_shapes, "start", Narrowing())
    with pytest.raises(ValueError, match="start of method ar changes the shapes of rows/last_hidden"):
        loop_shapes(decoder, "ar")


def test_the_program_writes_what_methods_share_once(tmp_path, capsys):
    main(Settings(methods=("ar",), json=tmp_path / "out.json"))
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["methods"] == {"ar": {"params": {}, "state": {}}}
    assert written["every_method"]["state"].items() >= STORED["every_method"]["state"].items()
    assert capsys.readouterr().out.startswith("ar: ")


def test_no_method_is_refused():
    with pytest.raises(ValueError, match=r"methods must be of ar, .*; got none"):
        main(Settings(methods=()))
