"""Options of several values, as all programs take them."""

from typing import Annotated, Any

from jax_smash.cli.lists import Decimals, NamedPaths, Names, Numbers, Paths, listed, one_of

PEERS = ("transformers", "transformers-lookup")
"""Other programs on the same weights and prompts: plain decoding, and its own prompt lookup."""

ONE_ROW = ("transformers-lookup",)
"""Peers that continue one prompt at a time and no more."""

Peers = Annotated[tuple[str, ...], listed(one_of(*PEERS), "NAME")]

__all__ = [
    "ONE_ROW",
    "PEERS",
    "Decimals",
    "NamedPaths",
    "Names",
    "Numbers",
    "Paths",
    "Peers",
    "check_least",
    "listed",
    "one_of",
]


def check_least(settings: Any, **least: float) -> None:
    """Refuses settings that are less than they may be; one of None is not given.

    Raises:
      ValueError: a setting is too small.
    """
    for name, smallest in least.items():
        value = getattr(settings, name)
        if value is not None and value < smallest:
            raise ValueError(f"{name} must be at least {smallest}; got {value}")
