"""What tests of kernels share: one call by name, and the differences that rounding explains."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.tree_attention import Inputs, tree_attention
from pallas_kernels.tree_attention.cases import Case, make
from pallas_kernels.tree_attention.inputs import Options

INTERPRETED = ("tpu", "gpu")

COVERED = (
    "grouped heads",
    "an empty cache",
    "capped scores",
    "padding behind",
    "bfloat16",
    "narrow heads",
    "random 1",
    "random 2",
)
"""Cases whose every feature another case has too."""


def parametrised(many: Sequence[Case]) -> list[Any]:
    """Returns cases to parametrise a test with, those that are covered marked slow."""
    return [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.name in COVERED else []) for case in many]


@functools.cache
def compiled(options: Options, implementation: str | None) -> Callable[[Inputs], jax.Array]:
    """Returns an implementation, compiled once a shape, kernels interpreted. Its constants are those of that moment."""
    return jax.jit(
        functools.partial(
            tree_attention,
            scale=options.scale,
            window=options.window,
            softcap=options.softcap,
            implementation=implementation,
            interpret=implementation in INTERPRETED,
        )
    )


def attended(inputs: Inputs, case: Case, implementation: str | None) -> np.ndarray:
    """Returns what an implementation makes of a case's inputs, kernels interpreted."""
    out = compiled(case.options, implementation)(inputs)
    assert out.shape == inputs.query.shape
    assert out.dtype == inputs.query.dtype
    return np.asarray(out).astype(np.float32)


@functools.cache
def expected(case: Case) -> np.ndarray:
    """Returns what the reference makes of a case's usual inputs."""
    return attended(make(case), case, "reference")


def tolerance(case: Case) -> dict[str, float]:
    """Returns what rounding may differ by: bfloat16 keeps eight bits of the weights and of the result."""
    return {"atol": 2e-5, "rtol": 2e-5} if case.dtype == "float32" else {"atol": 1e-2, "rtol": 1e-2}


def flip(inputs: Inputs, entry: int, other: int) -> Inputs:
    """Returns the inputs with one ancestor bit of every batch row turned over."""
    word, bit = other // 32, jnp.uint32(1 << other % 32)
    return inputs._replace(ancestors=inputs.ancestors.at[:, entry, word].set(inputs.ancestors[:, entry, word] ^ bit))


def scribble(inputs: Inputs) -> Inputs:
    """Returns the inputs with every bit turned over that means nothing: past the last entry, and of padding."""
    width = inputs.valid.shape[1]
    words = inputs.ancestors.shape[2] + 1
    column = np.arange(32 * words)
    valid = np.asarray(inputs.valid)
    meant = np.zeros((len(valid), 32 * words), bool)
    meant[:, :width] = valid
    meaningless = ~(meant[:, None] & valid[:, :, None])
    junk = (meaningless.reshape(len(valid), width, words, 32) << (column[:32])).sum(3).astype(np.uint32)
    wider = jnp.pad(inputs.ancestors, ((0, 0), (0, 0), (0, 1)))
    return inputs._replace(ancestors=wider ^ jnp.asarray(junk))
