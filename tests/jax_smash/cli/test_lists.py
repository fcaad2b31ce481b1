"""Options of several values: one syntax everywhere."""

import importlib
import inspect
import typing
from pathlib import Path

import pytest
import tyro

from jax_smash.cli.lists import Decimals, NamedPaths, Names, Numbers, Paths, Shares, listed, one_of

ROOT = Path(__file__).parents[3]
TEXTS = {("eval.exactness", "stop")}
"""Options whose values hold any character, a comma too: one argument is one value."""


def read(kind: typing.Any, *arguments: str) -> typing.Any:
    def main(option: kind) -> typing.Any:
        return option

    return tyro.cli(main, args=["--option", *arguments])


@pytest.mark.parametrize(
    "arguments", [("3", "1", "2"), ("3,1,2",), ("3,1", "2"), ("3,", "1,", "2"), ("3, 1, 2",)], ids=" ".join
)
def test_commas_and_spaces_separate_alike(arguments):
    assert read(Numbers, *arguments) == (3, 1, 2)
    assert read(Decimals, *arguments) == (3.0, 1.0, 2.0)
    assert read(Names, *arguments) == ("3", "1", "2")
    assert read(Paths, *arguments) == (Path("3"), Path("1"), Path("2"))


@pytest.mark.parametrize(
    "arguments", [("a=[1,2],b=[1,[2,3]],c",), ("a=[1,", "2],", "b=[1,[2,", "3]]", "c")], ids=" ".join
)
def test_what_stands_in_brackets_is_one_word(arguments):
    assert read(Names, *arguments) == ("a=[1,2]", "b=[1,[2,3]]", "c")


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        (Numbers, ("1,,2",), "values must not be empty; got '1,,2'"),
        (Names, ("a", ""), "values must not be empty"),
        (Names, ("a,b,",), "values must not be empty; got 'a,b,'"),
        (Names, (",a",), "values must not be empty"),
        (Names, ("a=[1,2", "b=3"), "a bracket must be closed; got 'a=[1,2,b=3'"),
        (Numbers, ("1", "x"), "each value must be INT; got 'x'"),
        (Decimals, ("0.5,high",), "each value must be NUMBER; got 'high'"),
        (Names, ("a,b", "a"), "values must be different; got a more than once"),
        (Numbers, ("1", "01"), "values must be different; got 1 more than once"),
        (
            typing.Annotated[tuple[str, ...], listed(one_of("one", "two"), "NAME")],
            ("one,three",),
            "each value must be one of one, two; got 'three'",
        ),
    ],
)
def test_what_is_no_list_of_different_values_is_refused(capsys, kind, arguments, said):
    with pytest.raises(SystemExit) as end:
        read(kind, *arguments)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_shares_may_be_equal():
    assert read(Shares, "0.5,0.5") == (0.5, 0.5)


def test_a_path_that_exists_is_one_value_commas_included(tmp_path):
    (tmp_path / "a,b").write_text("")
    assert read(Paths, f"{tmp_path}/a,b", "c,d") == (tmp_path / "a,b", Path("c"), Path("d"))
    assert read(NamedPaths, f"piqa={tmp_path}/a,b") == (f"piqa={tmp_path}/a,b",)
    assert read(NamedPaths, "piqa=a,arc=b") == ("piqa=a", "arc=b")


def _programs() -> list[str]:
    files = (*ROOT.glob("eval/*.py"), *ROOT.glob("train/*.py"))
    return sorted(f"{f.parent.name}.{f.stem}" for f in files if "\nif __name__ ==" in f.read_text())


@pytest.mark.parametrize("program", _programs())
def test_every_option_of_several_values_is_such_a_list(program):
    module = importlib.import_module(program)
    taken = getattr(module, "Settings", None) or module.main
    parameters = inspect.signature(taken).parameters
    hints = typing.get_type_hints(taken, include_extras=True)
    for name in set(parameters) - {option for where, option in TEXTS if where == program}:
        assert typing.get_origin(hints[name]) not in (tuple, list), f"{program} --{name}"


def test_the_programs_are_found():
    assert {"eval.quality", "eval.acceptance", "train.average", "train.base"} <= set(_programs())
