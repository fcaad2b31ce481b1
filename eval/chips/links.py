"""What devices send each other in a compiled program."""

import math
import re

from eval.chips.arrays import Array
from eval.chips.program import COLLECTIVES, Instruction

_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_COUNTED = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=")
_NAMED = re.compile(r"replica_groups=\S*mesh\S*\[([^\]]*)\][^{]*\{([^}]*)\}")
_SIZE = re.compile(r"'([^']*)'=(\d+)")
_AXIS = re.compile(r"'([^']*)'(?::\(\d+\)(\d+))?")


def link_bytes(x: Instruction, devices: int = 2) -> int:
    """Returns the bytes that a device sends for a collective, over a ring of those that take part.

    Args:
      x: the instruction; other ones send nothing.
      devices: that run the program: all of them take part where no groups are named.
    """
    kind = x.opcode.removesuffix("-start")
    if kind not in COLLECTIVES:
        return 0
    size = sum(array.bytes for array in _results(x, kind))
    if kind == "collective-permute":
        return size
    group = group_size(x, devices)
    # A reduce-scatter returns a share of what it reads.
    whole = size * group if kind == "reduce-scatter" else size
    return (2 if kind == "all-reduce" else 1) * whole * (group - 1) // group


def group_size(x: Instruction, devices: int) -> int:
    """Returns how many devices exchange arrays with each other in a collective.

    XLA lists groups, `{{0,1},{2,3}}`; counts them, `[2,4]<=[8]` and `[2,4]<=[4,2]T(1,0)` for two groups of four; or
    names the axes of a mesh that a group has, `mesh['data'=2,'tp'=4] {'tp'}`, where `'tp':(2)2` is part of an axis.

    Args:
      x: the collective.
      devices: that run the program, all of them one group where none is named.

    Raises:
      ValueError: groups are spelled in another way.
    """
    if found := _LISTED.search(x.rest):
        return len(found[1].split(","))
    if found := _COUNTED.search(x.rest):
        return int(found[2])
    if found := _NAMED.search(x.rest):
        sizes = {name: int(size) for name, size in _SIZE.findall(found[1])}
        return math.prod(int(part) if part else sizes[name] for name, part in _AXIS.findall(found[2])) or devices
    if "replica_groups=" not in x.rest or "replica_groups={}" in x.rest:
        return devices
    spelled = x.rest[x.rest.index("replica_groups=") :][:80]
    raise ValueError(f"the groups of a collective must be listed, counted or axes of a mesh; got {spelled!r}")


def _results(x: Instruction, kind: str) -> tuple[Array, ...]:
    """Returns the arrays that a collective makes. One that is begun also returns what it reads, in front of them."""
    count = len(x.operands)
    if x.opcode.endswith("-start") and kind != "all-reduce" and len(x.arrays) >= 2 * count:
        return x.arrays[count : 2 * count]
    return x.arrays
