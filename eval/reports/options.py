"""Options of several values, as all programs take them."""

from typing import Annotated

from jax_smash.cli.lists import Decimals, NamedPaths, Names, Numbers, Paths, listed, one_of

PEERS = ("transformers", "transformers-lookup")
"""Other programs on the same weights and prompts: plain decoding, and its own prompt lookup."""

ONE_ROW = ("transformers-lookup",)
"""Peers that continue one prompt at a time and no more."""

Peers = Annotated[tuple[str, ...], listed(one_of(*PEERS), "NAME")]

__all__ = ["ONE_ROW", "PEERS", "Decimals", "NamedPaths", "Names", "Numbers", "Paths", "Peers", "listed", "one_of"]
