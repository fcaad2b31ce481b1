"""Options of a command line that hold several values, apart by spaces or by commas."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import tyro


def _listed(kind: Callable[[str], Any], name: str) -> Any:
    def parse(arguments: list[str]) -> tuple[Any, ...]:
        return tuple(kind(word) for argument in arguments for word in argument.split(",") if word)

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"{name}[,{name}…]",
        instance_from_str=parse,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [",".join(map(str, value))],
    )


Names = Annotated[tuple[str, ...], _listed(str, "NAME")]
Numbers = Annotated[tuple[int, ...], _listed(int, "INT")]
Decimals = Annotated[tuple[float, ...], _listed(float, "X")]

Peer = Literal["transformers", "transformers-lookup"]
"""Another program on the same weights and prompts: plain decoding, or its own prompt lookup."""

ONE_ROW = ("transformers-lookup",)
"""Peers that continue one prompt at a time and no more."""
