"""What a trained predictor keeps of rows, what it makes of a forward, and what a layer's choice follows from."""

import dataclasses
from typing import Any

from jaxtyping import Array, Float, Int

from jax_smash.models.predictors import RoundedKeys
from jax_smash.pytree import pytree

Parts = tuple[Array, ...]
"""Keys of a layer: one array, or integers and their scales."""


@pytree
class Memory:
    """What a predictor keeps of rows.

    Attributes:
      keys: of each layer, or of each producer of a gate, what entries or pages are scored by, `[B, n, S, _]`; layers
        that no choice reads are left out.
      asked: of each layer or producer, queries of the last entries, the oldest first, where the predictor looks ahead.
      beside: what else a form keeps.
    """

    keys: dict[int, Parts]
    asked: dict[int, Float[Array, "B a n d"]] | None = None
    beside: Any = None


@pytree
class Heard:
    """What a predictor makes of a forward.

    Attributes:
      queries: of each layer or producer: of all entries where the predictor looks ahead, else of the first valid one.
      keys: of all entries, `[B, T, n, _]`.
      beside: what else a form needs in the commit.
    """

    queries: dict[int, Float[Array, "B Q n d"]] = dataclasses.field(default_factory=dict)
    keys: dict[int, Parts] = dataclasses.field(default_factory=dict)
    beside: Any = None


@pytree
class Told:
    """What one layer's choice follows from.

    Attributes:
      query: of the entry that chooses; None where it follows from the base's own.
      keys: as in `Memory`.
      projection: of the base's own query, by KV head and query head; None where there is none.
    """

    query: Float[Array, "B n d"] | None
    keys: Parts
    projection: Float[Array, "K G H d"] | None = None


@pytree
class LastScores:
    """Scores that serve several steps.

    Attributes:
      score: of each slot or page.
      filled: slots that were committed when they were made.
      left: steps that they still serve; 0 where they are to be made anew.
    """

    score: Float[Array, "B K X"]
    filled: Int[Array, "B"]
    left: Int[Array, "B"]


def joined(keys: Parts) -> Any:
    """Returns kept keys as `models.predictors.importance` takes them."""
    first, *scale = (part.swapaxes(1, 2) for part in keys)
    return RoundedKeys(values=first, scale=scale[0][..., 0]) if scale else first


def parted(keys: Any) -> Parts:
    """Returns new keys as they are kept."""
    return (keys.values, keys.scale[..., None]) if isinstance(keys, RoundedKeys) else (keys,)
