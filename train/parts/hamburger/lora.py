"""Low-rank changes of a base's matrices, trained in place of the matrices."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jax_smash.checkpoints.fit import dotted

LAYERS = "layers"
"""What the matrices stand under that are changed: not embeddings, not the head."""

Lora = dict[str, dict[str, jax.Array]]
"""By the dotted name of a matrix: `a`, `[inputs, rank]`, and `b`, `[rank, outputs]`."""


def first_lora(params: nnx.State, rank: int, seed: int) -> Lora:
    """Returns changes that change nothing yet: `a` is random, `b` is 0.

    Source: Hu et al. 2022, LoRA: Low-Rank Adaptation of Large Language Models, section 4.1.

    Args:
      params: of the base.
      rank: of each change.
      seed: of what is random.
    """
    matrices = {dotted(path): variable for path, variable in nnx.to_flat_state(params) if _changes(path)}
    keys = jax.random.split(jax.random.key(seed), len(matrices))
    lora = {}
    for key, (name, variable) in zip(keys, matrices.items(), strict=True):
        inputs, outputs = _sizes(variable)
        a = jax.random.normal(key, (inputs, rank), jnp.float32) * jnp.float32(inputs**-0.5)
        lora[name] = {"a": a, "b": jnp.zeros((rank, outputs), jnp.float32)}
    return lora


def merged(params: nnx.State, lora: Lora, scale: float) -> nnx.State:
    """Returns the base's parameters with the changes in them: each matrix plus `scale` · a · b.

    The sum is made in float32 whatever the matrices are held in: a change is often smaller than a step of theirs.
    """

    def with_change(path: tuple[Any, ...], variable: Any) -> Any:
        if not _changes(path):
            return variable
        weight, change = variable.get_value(), lora[dotted(path)]
        a, b = (change[side].astype(jnp.float32) for side in ("a", "b"))
        contracted, others = _axes(variable)
        product = (a @ b * jnp.float32(scale)).reshape([weight.shape[i] for i in (*contracted, *others)])
        product = jnp.moveaxis(product, range(len(contracted)), contracted)
        return variable.replace((weight.astype(jnp.float32) + product).astype(weight.dtype))

    return nnx.from_flat_state([(path, with_change(path, v)) for path, v in nnx.to_flat_state(params)])


def _changes(path: tuple[Any, ...]) -> bool:
    return path[0] == LAYERS and str(path[-1]).startswith("w_")


def _sizes(variable: Any) -> tuple[int, int]:
    """Returns a matrix's inputs, the axes that its product sums over, and its outputs."""
    contracted, others = _axes(variable)
    return math.prod(variable.shape[i] for i in contracted), math.prod(variable.shape[i] for i in others)


def _axes(variable: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the axes of a matrix that its product sums over, and the others."""
    contracted = variable.get_metadata()["contracted"]
    return contracted, tuple(i for i in range(len(variable.shape)) if i not in contracted)
