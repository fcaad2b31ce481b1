"""Options of several values, as all programs take them."""

from jax_smash.cli.lists import Decimals, NamedPaths, Names, Numbers, Paths, listed, one_of

__all__ = ["Decimals", "NamedPaths", "Names", "Numbers", "Paths", "listed", "one_of"]
