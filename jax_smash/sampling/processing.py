"""The one loop over logits processors."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Array, Float, Int

from jax_smash.protocols import LogitsProcessor


def process(
    processors: Sequence[LogitsProcessor],
    memory: Sequence[Any],
    logits: Float[Array, "B M V"],
    path: Int[Array, "B M P"],
) -> Float[Array, "B M V"]:
    """Returns the logits from which tokens are chosen: each processor changes what the one before it left.

    Args:
      processors: in order.
      memory: the state of each.
      logits: of each row and node.
      path: tokens between those that the processors have seen and each node, padded with −1.
    """
    for processor, seen in zip(processors, memory, strict=True):
        logits = processor.apply(seen, logits, path)
    return logits
