"""Operations of a compiled program's matrix products, an addition and a multiplication each."""

import math
import re

from eval.chips.arrays import Array
from eval.chips.program import Instruction, Program

PRODUCTS = ("dot", "convolution")


def products(program: Program, x: Instruction, computation: str) -> list[tuple[str, int]]:
    """Returns the element type and the operations of each matrix product that an operation makes.

    Args:
      program: that it is of.
      x: the operation, a fusion perhaps.
      computation: name of the one that it is a line of.
    """
    if x.opcode == "fusion":
        inside = x.called[0]
        return [found for y in program.computations[inside] for found in products(program, y, inside)]
    if x.opcode not in PRODUCTS:
        # A kernel's are of the 16 bits that caches have.
        return [("bf16", program.kernels[x.name].operations)] if x.name in program.kernels else []
    named = program.named(computation)
    left, right = (named[name].arrays[0] for name in x.operands[:2])
    count = _dot(x, left) if x.opcode == "dot" else _convolution(x, left, right)
    return [(left.kind, 2 * count)]


def _dot(x: Instruction, left: Array) -> int:
    found = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", x.rest)
    axes = [int(n) for n in found[1].split(",") if n] if found else []
    return x.arrays[0].elements * math.prod(left.sizes[axis] for axis in axes)


def _convolution(x: Instruction, left: Array, right: Array) -> int:
    """Returns how often an element of the input meets one of the kernel; what a window reads of padding is left out.

    XLA writes the batches and heads of a product as spatial axes, with padding or dilation in place of most pairs.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", x.rest)
    if labels is None:
        raise ValueError(f"a convolution must have dim_labels; got {x.rest[:80]!r}")
    inputs, kernel, outputs = labels.groups()
    out = x.arrays[0]
    count = out.sizes[outputs.index("b")] * out.sizes[outputs.index("f")] * right.sizes[kernel.index("i")]
    groups = re.search(r"batch_group_count=(\d+)", x.rest)
    count //= int(groups[1]) if groups else 1
    for axis in (letter for letter in outputs if letter.isdigit()):
        count *= _pairs(x, int(axis), left.sizes[inputs.index(axis)], out.sizes[outputs.index(axis)])
    return count


def _pairs(x: Instruction, axis: int, size: int, out: int) -> int:
    """Returns how many pairs of a place of the output and one of the window meet an element of the input."""
    window = re.search(r"window=\{([^}]*)\}", x.rest)
    fields = dict(field.split("=") for field in window[1].split()) if window else {}

    def field(name: str, default: str) -> str:
        return fields[name].split("x")[axis] if name in fields else default

    taps, stride, low = int(field("size", "1")), int(field("stride", "1")), int(field("pad", "0_0").split("_")[0])
    spread, apart = int(field("lhs_dilate", "1")), int(field("rhs_dilate", "1"))
    places = (o * stride + tap * apart - low for o in range(out) for tap in range(taps))
    return sum(place % spread == 0 and 0 <= place // spread < size for place in places)
