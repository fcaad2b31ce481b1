"""Options that hold several values: `a,b`, `a b` and `a, b` are the same list in every program."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro


def listed(kind: Callable[[str], Any], name: str, *, paths: bool = False, repeats: bool = False) -> Any:
    """Returns what makes an option a list, to stand in `Annotated[tuple[…, ...], …]`.

    Args:
      kind: makes a value from a word; raises ValueError where it cannot.
      name: of a value, in the help.
      paths: values are paths, or NAME=PATH; one that exists is taken whole, commas included.
      repeats: a value may be given more than once.
    """

    def parse(arguments: list[str]) -> tuple[Any, ...]:
        values = tuple(_value(kind, word, name) for word in split_words(arguments, paths=paths))
        again = next((value for i, value in enumerate(values) if value in values[:i]), None)
        if again is not None and not repeats:
            raise ValueError(f"values must be different; got {again} more than once")
        return values

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"{name},…",
        instance_from_str=parse,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda values: [",".join(map(str, values)) or "none"],
    )


def split_words(arguments: list[str], *, paths: bool = False) -> list[str]:
    """Returns the words of a list, which are separated by commas, by spaces, or by both.

    What stands in brackets, as in `a=[1,2]`, is one word.

    Args:
      arguments: of the command line.
      paths: words are paths: an argument that is the path of something is one word, and brackets mean nothing.

    Raises:
      ValueError: a word is empty, as in `a,,b`, or a bracket is not closed.
    """
    words: list[str] = []
    for i, argument in enumerate(arguments):
        if paths and Path(argument.partition("=")[2] or argument).exists():
            words.append(argument)
            continue
        # Of `a, b` the shell makes two arguments; the first ends in a comma.
        last = i == len(arguments) - 1
        words += (argument if last else argument.removesuffix(",")).split(",")
    words = [word.strip() for word in words]
    if "" in words:
        raise ValueError(f"values must not be empty; got {' '.join(arguments)!r}")
    return words if paths else _with_brackets(words)


def _with_brackets(words: list[str]) -> list[str]:
    whole: list[str] = []
    for word in words:
        if whole and _is_open(whole[-1]):
            whole[-1] += f",{word}"
        else:
            whole.append(word)
    if whole and _is_open(whole[-1]):
        raise ValueError(f"a bracket must be closed; got {whole[-1]!r}")
    return whole


def _is_open(word: str) -> bool:
    return word.count("[") > word.count("]")


def one_of(*names: str) -> Callable[[str], str]:
    """Returns what makes a value from a word: one of some names."""

    def checked(word: str) -> str:
        if word not in names:
            raise ValueError(f"each value must be one of {', '.join(names)}; got {word!r}")
        return word

    return checked


def _value(kind: Callable[[str], Any], word: str, name: str) -> Any:
    try:
        return kind(word)
    except ValueError as error:
        if kind in (int, float):
            raise ValueError(f"each value must be {name}; got {word!r}") from error
        raise


Names = Annotated[tuple[str, ...], listed(str, "NAME")]
Numbers = Annotated[tuple[int, ...], listed(int, "INT")]
Decimals = Annotated[tuple[float, ...], listed(float, "NUMBER")]
Shares = Annotated[tuple[float, ...], listed(float, "NUMBER", repeats=True)]
Paths = Annotated[tuple[Path, ...], listed(Path, "PATH", paths=True)]
PathNames = Annotated[tuple[str, ...], listed(str, "PATH", paths=True)]
NamedPaths = Annotated[tuple[str, ...], listed(str, "NAME=PATH", paths=True)]
