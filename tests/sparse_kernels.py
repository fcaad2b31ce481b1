"""What tests of sparse attention share, as `tests.kernels` is for tree attention."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.sparse_attention import Options, Pages, sparse_attention
from pallas_kernels.sparse_attention.cases import TESTS, Case, make
from pallas_kernels.tree_attention import Inputs
from tests.kernels import INTERPRETED


def named(name: str) -> Case:
    """Returns the test case of a name."""
    return next(case for case in TESTS if case.name == name)


@functools.cache
def compiled(options: Options, implementation: str | None) -> Callable[[Inputs, Pages], jax.Array]:
    """Returns an implementation, compiled once a shape, kernels interpreted. Its constants are those of that moment."""
    interpret = implementation in INTERPRETED
    run = functools.partial(sparse_attention, **vars(options), implementation=implementation, interpret=interpret)
    return jax.jit(run)


def attended(inputs: Inputs, pages: Pages, case: Case, implementation: str | None) -> np.ndarray:
    """Returns what an implementation makes of a case's arrays, kernels interpreted."""
    out = compiled(case.options, implementation)(inputs, pages)
    assert out.shape == inputs.query.shape
    assert out.dtype == inputs.query.dtype
    return np.asarray(out).astype(np.float32)


def ending_in_the_newest_page(case: Case) -> tuple[Inputs, Pages]:
    """Returns the arrays of a case whose cache is filled in order, with a page of each set and the newest behind it."""
    inputs, pages = make(case)
    size, held = case.page_size, np.asarray(case.held)
    newest = np.broadcast_to(((held - 1) // size)[:, None], pages.counts.shape)
    first = np.arange(newest.size).reshape(newest.shape) % np.maximum(newest, 1)
    table, counts = np.stack([first, newest], axis=2), np.full(newest.shape, 2)
    filled = size + np.broadcast_to(((held - 1) % size + 1)[:, None], newest.shape)
    return inputs, Pages(*(jnp.asarray(x, jnp.int32) for x in (table, counts, filled)))


@functools.cache
def expected(case: Case) -> np.ndarray:
    """Returns what the reference makes of a case's usual arrays."""
    return attended(*make(case), case, "reference")
