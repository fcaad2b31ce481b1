"""Calls of Pallas kernels in programs that are compiled, not run: what each moves and multiplies with a full cache.

A compiled program holds a kernel as one operation, which says nothing of what it reads. Its grid and index maps are
those of the call that was traced, so calls are recorded where they are made.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from eval.chips.kernel_bytes import Blocks, kernel_bytes
from eval.chips.program import Instruction, Program
from eval.chips.traffic import Traffic

Key = tuple[str, tuple[int, ...], tuple[tuple[int, ...], ...]]
"""Name, shape of the first result, and shapes of the operands of rank 4, their axes sorted."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """What a kernel does in one call.

    Attributes:
      traffic: bytes of main memory.
      operations: of its matrix products.
    """

    traffic: Traffic
    operations: int


CALLS: dict[Key, tuple[dict[str, Any], list[jax.ShapeDtypeStruct]]] = {}
"""Options and operands of the calls that were recorded. JAX traces a call once for all programs of its shapes."""


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Records the calls of Pallas kernels that are traced."""
    call = pl.pallas_call

    def spy(kernel: Callable[..., None], **options: Any) -> Callable[..., Any]:
        made = call(kernel, **options)

        def called(*operands: Any) -> Any:
            key = _key(options["name"], options["out_shape"].shape, [x.shape for x in operands])
            CALLS[key] = options, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
            return made(*operands)

        return called

    pl.pallas_call = spy  # type: ignore[assignment]
    try:
        yield
    finally:
        pl.pallas_call = call


def known_kernels(program: Program) -> dict[str, Kernel]:
    """Returns the recorded kernels of a program, by the names of its instructions."""
    found = {}
    for computation, lines in program.computations.items():
        named = program.named(computation)
        for x in lines:
            if '"tpu_custom_call"' in x.rest and (key := _key_of(x, named)) in CALLS and key[0] in FULL:
                operands = [named[name].arrays[0] for name in x.operands if name in named]
                in_main = tuple(not array.space for array in (*operands, x.arrays[0]))
                found[x.name] = _full(key, in_main[-len(CALLS[key][1]) - 1 :])
    return found


def _full_tree_attention(operands: Sequence[Any], steps: int) -> tuple[int, list[jax.Array]]:
    """Returns the steps of tree attention's last axis and its scalars, where every block of the cache is needed."""
    rows, blocks = operands[0].shape
    order = jnp.broadcast_to(jnp.arange(blocks, dtype=jnp.int32), (rows, blocks))
    return max(steps, blocks), [order, jnp.full((rows,), blocks, jnp.int32)]


FULL = {"tree_attention": _full_tree_attention}
"""Of each kernel whose grid or index maps read numbers, what these are at the most."""


@functools.cache
def _full(key: Key, in_main: tuple[bool, ...]) -> Kernel:
    """Returns what a call does.

    Args:
      key: of the call.
      in_main: whether each operand, and the result, is in main memory. What is in fast memory moves nothing.
    """
    options, operands = CALLS[key]
    spec = options["grid_spec"]
    count = spec.num_scalar_prefetch
    # The blocks of the cache are read beside tiles of the block's own entries.
    own = operands[count + 3].shape[1]
    steps, scalars = FULL[options["name"]](operands, own)
    grid = (*(int(n) for n in spec.grid[:-1]), steps)
    reads = [Blocks.of(s, x) for s, x in zip(spec.in_specs, operands[count:], strict=True)]
    reads = [blocks for blocks, main in zip(reads, in_main[count:-1], strict=True) if main]
    writes = [Blocks.of(spec.out_specs, options["out_shape"])] if in_main[-1] else []
    moved = kernel_bytes(grid, reads, writes, scalars)
    return Kernel(traffic=moved, operations=int(options["cost_estimate"].flops))


def _key(name: str, result: Sequence[int], operands: Sequence[Sequence[int]]) -> Key:
    return name, tuple(result), tuple(sorted(tuple(sorted(shape)) for shape in operands if len(shape) == 4))


def _key_of(x: Instruction, named: dict[str, Instruction]) -> Key:
    operands = [array.sizes for name in x.operands if name in named for array in named[name].arrays[:1]]
    return _key(x.name.split(".")[0], x.arrays[0].sizes, operands)
