"""The one loop over logits processors."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jaxtyping import Array, Float, Int

from jax_smash.protocols import LogitsProcessor, used_by


def process(
    processors: Sequence[LogitsProcessor],
    memory: Sequence[Any],
    logits: Float[Array, "B M V"],
    path: Int[Array, "B M P"],
) -> Float[Array, "B M V"]:
    """Returns the logits from which tokens are chosen: each processor changes what the one before it left.

    One that no row uses is skipped while decoding.

    Args:
      processors: in order.
      memory: the state of each.
      logits: of each row and node.
      path: tokens between those that the processors have seen and each node, padded with −1.
    """
    for processor, seen in zip(processors, memory, strict=True):
        apply = functools.partial(processor.apply, seen)
        rows = used_by(processor)
        logits = apply(logits, path) if rows is None else jax.lax.cond(rows.any(), apply, _unchanged, logits, path)
    return logits


def _unchanged(logits: Float[Array, "B M V"], path: Int[Array, "B M P"]) -> Float[Array, "B M V"]:
    return logits
