"""Weights that one device holds of a model, by what they are for."""

import dataclasses
import math
from typing import Any

import jax
from flax import nnx
from qwix import QArray

from jax_smash.planning.abstract import share, share_bytes

PROJECTIONS, MLP, HEAD, TABLE, OTHER = "projections", "mlp", "head", "embedding", "other"
"""What weights of a model are for: queries, keys, values and output; the MLP; logits; vectors of tokens that are looked
up, where the head is another matrix; and what is read once beside them."""


@dataclasses.dataclass(frozen=True)
class Weights:
    """Weights that one device holds.

    Attributes:
      bytes: all of them, scales of quantised ones included.
      elements: of matrices, scales left out: an entry is multiplied with each once.
    """

    bytes: int = 0
    elements: int = 0

    def __add__(self, other: "Weights") -> "Weights":
        return Weights(self.bytes + other.bytes, self.elements + other.elements)

    def times(self, share: float) -> "Weights":
        """Returns a share of them."""
        return Weights(round(share * self.bytes), round(share * self.elements))


def target_weights(params: Any) -> dict[str, Weights]:
    """Returns the weights that a device holds of a target, by what they are for."""
    found = {name: Weights() for name in (PROJECTIONS, MLP, HEAD, TABLE, OTHER)}
    untied = "head" in params
    for path, variable in nnx.to_flat_state(params):
        found[_purpose([str(name) for name in path], untied)] += weights_of(variable.get_value())
    return found


def weights_of(tree: Any) -> Weights:
    """Returns the weights of a tree of shapes that a device holds."""
    return Weights(share_bytes(tree), sum(math.prod(share(x)) for x in matrices(tree)))


def matrices(tree: Any) -> list[Any]:
    """Returns the matrices of a tree of shapes; of quantised ones the integers, without their scales."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, QArray))
    arrays = [x.qvalue if isinstance(x, QArray) else x for x in leaves]
    return [x for x in arrays if x.ndim > 1]


def _purpose(path: list[str], untied: bool) -> str:
    if path[0] in ("head", "embedding"):
        return HEAD if path[0] == "head" or not untied else TABLE
    if "attention" in path:
        return PROJECTIONS
    return MLP if "mlp" in path else OTHER
