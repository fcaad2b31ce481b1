"""Low-rank changes of a base's matrices, trained in place of the matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jax_smash.checkpoints.fit import dotted

LAYERS = "layers"
"""What the matrices of layers stand under."""

MATRICES = ("w_qkv", "w_o", "w_gate_up", "w_down")
"""Of a layer: what is changed where nothing else is asked for."""

HEAD = "head"
"""The rows of tokens, where they are not the embedding."""

Lora = dict[str, dict[str, jax.Array]]
"""By the dotted name of a matrix: `a`, `[inputs, rank]`, and `b`, `[rank, outputs]`."""


def first_lora(params: nnx.State, rank: int, seed: int, targets: Sequence[str] = MATRICES) -> Lora:
    """Returns changes that change nothing yet: `a` is random, `b` is 0.

    Source: Hu et al. 2022, LoRA: Low-Rank Adaptation of Large Language Models, section 4.1.

    Args:
      params: of the base.
      rank: of each change.
      seed: of what is random.
      targets: names of matrices of layers, and `HEAD`.

    Raises:
      ValueError: the base has no such matrix.
    """
    found = nnx.to_flat_state(params)
    names = {_target(path) for path, _ in found}
    if missing := [name for name in targets if name not in names]:
        known = ", ".join(sorted(name for name in names if name))
        raise ValueError(f"targets of low-rank changes must be among {known}; got {missing[0]!r}")
    matrices = {dotted(path): variable for path, variable in found if _target(path) in targets}
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
        if dotted(path) not in lora:
            return variable
        weight, change = variable.get_value(), lora[dotted(path)]
        a, b = (change[side].astype(jnp.float32) for side in ("a", "b"))
        contracted, others = axes_of(variable)
        product = (a @ b * jnp.float32(scale)).reshape([weight.shape[i] for i in (*contracted, *others)])
        product = jnp.moveaxis(product, range(len(contracted)), contracted)
        return variable.replace((weight.astype(jnp.float32) + product).astype(weight.dtype))

    return nnx.from_flat_state([(path, with_change(path, v)) for path, v in nnx.to_flat_state(params)])


def _target(path: tuple[Any, ...]) -> str:
    """Returns the name that a matrix is asked for by; empty where none may be changed there."""
    name = str(path[-1])
    return name if path == (HEAD,) or (path[0] == LAYERS and name.startswith("w_")) else ""


def _sizes(variable: Any) -> tuple[int, int]:
    """Returns a matrix's inputs, the axes that its product sums over, and its outputs."""
    contracted, others = axes_of(variable)
    return math.prod(variable.shape[i] for i in contracted), math.prod(variable.shape[i] for i in others)


def axes_of(variable: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the axes of a matrix that its product sums over, and the others."""
    contracted = variable.get_metadata()["contracted"]
    return contracted, tuple(i for i in range(len(variable.shape)) if i not in contracted)
