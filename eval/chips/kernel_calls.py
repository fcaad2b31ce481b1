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
from pallas_kernels.sparse_attention import tables

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


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that was recorded.

    Attributes:
      kernel: that is called.
      options: of `pallas_call`.
      operands: shapes of what it is given, scalars first.
    """

    kernel: Callable[..., None]
    options: dict[str, Any]
    operands: list[jax.ShapeDtypeStruct]

    @property
    def spec(self) -> Any:
        """Grid and blocks."""
        return self.options["grid_spec"]

    @property
    def own(self) -> int:
        """Tiles of the block's own entries, which are read beside blocks of the cache."""
        return self.operands[self.spec.num_scalar_prefetch + 3].shape[1]


CALLS: dict[Key, Call] = {}
"""The calls that were recorded. JAX traces a call once for all programs of its shapes."""


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Records the calls of Pallas kernels that are traced."""
    call = pl.pallas_call

    def spy(kernel: Callable[..., None], **options: Any) -> Callable[..., Any]:
        made = call(kernel, **options)

        def called(*operands: Any) -> Any:
            key = _key(options["name"], options["out_shape"].shape, [x.shape for x in operands])
            CALLS[key] = Call(kernel, options, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands])
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
            if '"tpu_custom_call"' in x.rest and (key := _key_of(x, named)) in CALLS and key[0] in MOST:
                operands = [named[name].arrays[0] for name in x.operands if name in named]
                in_main = tuple(not array.space for array in (*operands, x.arrays[0]))
                found[x.name] = _full(key, in_main[-len(CALLS[key].operands) - 1 :])
    return found


@dataclasses.dataclass(frozen=True)
class Most:
    """What a call does at the most, where its grid or index maps read numbers.

    Attributes:
      steps: of the last axis of the grid.
      scalars: what it reads beforehand.
      copied: bytes that the kernel copies by itself, from operands without blocks.
    """

    steps: int
    scalars: list[jax.Array]
    copied: int = 0


def _most_of_tree_attention(call: Call) -> Most:
    """Every block of the cache is needed."""
    rows, blocks = call.operands[0].shape
    order = jnp.broadcast_to(jnp.arange(blocks, dtype=jnp.int32), (rows, blocks))
    return Most(max(call.own, blocks), [order, jnp.full((rows,), blocks, jnp.int32)])


def _most_of_sparse_attention(call: Call) -> Most:
    """Every place of the page tables has a page."""
    counts, table = call.operands[2:4]
    given = list(zip(call.spec.in_specs, call.operands[call.spec.num_scalar_prefetch :], strict=True))
    # Keys and values, and scales where they are int8.
    cached = [x for spec, x in given if spec.block_shape is None]
    block = [spec.block_shape[-1] for spec, _ in given if spec.block_shape is not None][-1]
    rows, kv_heads = cached[0].shape[:2]
    size = call.kernel.keywords["options"].page_size  # type: ignore[attr-defined]
    most = table.size // counts.size
    full = jnp.full((rows, counts.size // rows), most, jnp.int32)
    total, head, block_of = tables.steps(full, kv_heads, block // size, most, call.own)
    pages = int(call.spec.grid[0]) * rows * kv_heads * most
    page_bytes = sum(size * x.size // (rows * kv_heads * max(x.shape[2:])) * x.dtype.itemsize for x in cached)
    scalars = [head, block_of, full.reshape(-1), jnp.zeros(table.shape, jnp.int32)]
    return Most(int(total), scalars, pages * page_bytes)


MOST = {"tree_attention": _most_of_tree_attention, "sparse_attention": _most_of_sparse_attention}
"""Kernels whose calls are understood."""


@functools.cache
def _full(key: Key, in_main: tuple[bool, ...]) -> Kernel:
    """Returns what a call does.

    Args:
      key: of the call.
      in_main: whether each operand, and the result, is in main memory. What is in fast memory moves nothing.
    """
    call = CALLS[key]
    spec, options, operands = call.spec, call.options, call.operands
    count = spec.num_scalar_prefetch
    most = MOST[options["name"]](call)
    grid = (*(int(n) for n in spec.grid[:-1]), most.steps)
    given = zip(spec.in_specs, operands[count:], in_main[count:-1], strict=True)
    reads = [Blocks.of(s, x) for s, x, main in given if main and s.block_shape is not None]
    writes = [Blocks.of(spec.out_specs, options["out_shape"])] if in_main[-1] else []
    moved = kernel_bytes(grid, reads, writes, most.scalars)
    moved = dataclasses.replace(moved, read=moved.read + most.copied)
    return Kernel(traffic=moved, operations=int(options["cost_estimate"].flops))


def _key(name: str, result: Sequence[int], operands: Sequence[Sequence[int]]) -> Key:
    return name, tuple(result), tuple(sorted(tuple(sorted(shape)) for shape in operands if len(shape) == 4))


def _key_of(x: Instruction, named: dict[str, Instruction]) -> Key:
    operands = [array.sizes for name in x.operands if name in named for array in named[name].arrays[:1]]
    return _key(x.name.split(".")[0], x.arrays[0].sizes, operands)
