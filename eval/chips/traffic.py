"""Bytes that a compiled program's operations read from a device's main memory and write to it.

Fast memory and the host's are no part of it. An operation counts its operands and results, with two exceptions, inside
fusions too: of what it only slices or gathers from, it counts the pieces; of what it updates in place, the update.
Tiles count as a whole, padding included.
"""

import dataclasses
import re
from collections.abc import Iterator

from eval.chips.arrays import Array
from eval.chips.program import Instruction, Program

FREE = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "partition-id"),
    *("replica-id", "while", "conditional", "call"),
)
"""Opcodes that move nothing themselves: those that only name an array, and those whose computations are counted."""

NAMING = ("ConcatBitcast", "AssumeGatherIndicesInBound", "AllocateBuffer", "Sharding", "SPMDFullToShardShape")
"""Custom calls that only name an array."""

PIECES = ("slice", "dynamic-slice", "gather")
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Opcodes that write a piece of their first operand, each with the number of the operand that holds the piece."""

SAME = ("bitcast", "convert", "copy", "reshape", "transpose", "get-tuple-element")
"""Opcodes that return their first operand in another form."""


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that an operation moves.

    Attributes:
      read, written: of the device's main memory.
    """

    read: int = 0
    written: int = 0

    @property
    def total(self) -> int:
        """Both together."""
        return self.read + self.written


@dataclasses.dataclass(frozen=True)
class Run:
    """An operation where a program runs it.

    Attributes:
      instruction: the operation.
      computation: name of the one that it is a line of.
      times: how often it runs in one run of where the walk began.
    """

    instruction: Instruction
    computation: str
    times: int


def runs(program: Program, computation: str, times: int = 1) -> Iterator[Run]:
    """Yields the operations that a computation runs, those of its loops and branches among them.

    A loop of unknown length counts as running once, and of branches the one that moves most is taken. Operations within
    a fusion are left out: the fusion is one.
    """
    for x in program.computations[computation]:
        if x.body:
            yield from runs(program, x.body, times * (trip_count(program, x, computation) or 1))
        elif x.opcode == "conditional":
            branches = [list(runs(program, name, times)) for name in x.called]
            yield from max(branches, key=lambda found: moved(program, found), default=[])
        elif x.opcode in ("call", "async-start"):
            for name in x.called:
                yield from runs(program, name, times)
        else:
            yield Run(x, computation, times)


def moved(program: Program, found: list[Run]) -> int:
    """Returns the bytes that operations read and write, as often as they run."""
    return sum(run.times * traffic(program, run.instruction, run.computation).total for run in found)


def unknown_loops(program: Program, computation: str) -> list[str]:
    """Returns the names of the loops that a computation runs and whose length is not known."""
    found = []
    for name in dict.fromkeys([computation, *_reached(program, computation)]):
        loops = (x for x in program.computations[name] if x.body)
        found += [x.name for x in loops if trip_count(program, x, name) is None]
    return found


def trip_count(program: Program, loop: Instruction, computation: str) -> int | None:
    """Returns how often a loop's body runs: as the compiler says, or by a counter that is compared with a constant.

    Args:
      program: that the loop is of.
      loop: a `while`.
      computation: name of the one that the loop is a line of.
    """
    known = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.rest)
    if known:
        return int(known[1])
    lines = program.named(loop.condition or "")
    root = next((x for x in lines.values() if x.root), None)
    if root is None or root.opcode != "compare" or "direction=LT" not in root.rest:
        return None
    around = program.named(computation)
    ends = [_constant(lines[name], loop, around) for name in root.operands]
    return max(ends[1] - ends[0], 0) if len(ends) == 2 and None not in ends else None  # type: ignore[operator]


def traffic(program: Program, x: Instruction, computation: str) -> Traffic:
    """Returns what an operation moves in one run.

    Args:
      program: that it is of.
      x: the operation.
      computation: name of the one that it is a line of.
    """
    if x.name in program.kernels:
        return program.kernels[x.name].traffic
    named = program.named(computation)
    if x.opcode in FREE or x.opcode.endswith(("-done", "-update")) or any(f'"{name}"' in x.rest for name in NAMING):
        return Traffic()
    if x.opcode == "fusion":
        (inside,) = x.called[:1]
        read = sum(_read(program, inside, i) for i in range(len(x.operands)))
        return Traffic(read, sum(_written(program, inside, array, i) for i, array in enumerate(x.arrays)))
    operands = [array for name in x.operands if name in named for array in named[name].arrays]
    if x.opcode in ("copy-start", "slice-start"):
        return _fetched(x, operands[0])
    if x.opcode.endswith("-start"):
        # Where a tuple is returned, it holds the operands, then as many results.
        results = x.arrays[len(operands) : 2 * len(operands)] or x.arrays
        return Traffic(sum(y.main_bytes for y in operands), sum(y.main_bytes for y in results))
    written = sum(y.main_bytes for y in x.arrays)
    if x.opcode in PIECES:
        return Traffic(sum(_bounded(y, operands[0]) for y in x.arrays), written)
    if x.opcode in UPDATES:
        update = _within(named[x.operands[UPDATES[x.opcode]]].arrays[0], x.arrays[0])
        return Traffic(sum(y.main_bytes for y in operands[1:]), update)
    return Traffic(sum(y.main_bytes for y in operands), written)


def held_bytes(program: Program, loop: Instruction) -> int:
    """Returns the bytes that a loop keeps in fast memory from step to step, so that no step reads them."""
    return sum(x.padded_bytes for x in loop.arrays if x.space not in (0, 5))


def _fetched(x: Instruction, source: Array) -> Traffic:
    """Returns what an asynchronous copy or slice moves: a slice's result stands behind its operand, a copy's before."""
    result = x.arrays[0] if x.opcode == "copy-start" else x.arrays[1]
    return Traffic(result.padded_bytes if source.space == 0 else 0, result.main_bytes)


def _read(program: Program, computation: str, index: int) -> int:
    """Returns the bytes of a fusion's parameter that it reads."""
    lines = program.named(computation)
    parameter = next(x for x in lines.values() if x.opcode == "parameter" and x.index == index)
    (array,) = parameter.arrays[:1] or (Array("token", ()),)
    return 0 if array.space else min(_needed(program, computation, parameter, array), array.padded_bytes)


def _needed(program: Program, computation: str, x: Instruction, array: Array) -> int:
    """Returns the bytes of an array that those need who read an instruction, which returns it in some form."""
    if x.root and x.opcode != "parameter":
        return array.padded_bytes
    total = 0
    for reader in program.computations[computation]:
        for place in (i for i, name in enumerate(reader.operands) if name == x.name):
            if place == 0 and reader.opcode in PIECES:
                total += sum(_within(piece, array) for piece in reader.arrays)
            elif place == 0 and reader.opcode in UPDATES:
                continue
            elif reader.opcode == "fusion":
                total += _inner(program, reader.called[0], place, array)
            elif reader.opcode in SAME:
                total += _needed(program, computation, reader, array)
            else:
                return array.padded_bytes
    return total


def _inner(program: Program, computation: str, index: int, array: Array) -> int:
    lines = program.named(computation)
    parameter = next(x for x in lines.values() if x.opcode == "parameter" and x.index == index)
    return _needed(program, computation, parameter, array)


def _written(program: Program, computation: str, array: Array, place: int) -> int:
    """Returns the bytes of one of a fusion's results that it writes."""
    if array.space:
        return 0
    lines = program.named(computation)
    root = next(x for x in lines.values() if x.root)
    if root.opcode == "tuple":
        root = lines[root.operands[place]]
    while root.opcode in SAME and root.operands[0] in lines:
        root = lines[root.operands[0]]
    if root.opcode == "fusion":
        return _written(program, root.called[0], array, place)
    if root.opcode in UPDATES and _is_parameter(lines, root.operands[0]):
        return _within(lines[root.operands[UPDATES[root.opcode]]].arrays[0], array)
    return array.padded_bytes


def _is_parameter(lines: dict[str, Instruction], name: str) -> bool:
    while lines[name].opcode in SAME:
        name = lines[name].operands[0]
    return lines[name].opcode == "parameter"


def _within(piece: Array, whole: Array) -> int:
    """Returns the bytes that a piece takes of an array, which may be of another element type."""
    scaled = piece.padded_bytes * whole.width / piece.width if piece.width else 0
    return min(round(scaled), whole.padded_bytes)


def _bounded(piece: Array, whole: Array) -> int:
    return 0 if whole.space else _within(piece, whole)


def _constant(x: Instruction, loop: Instruction, around: dict[str, Instruction]) -> int | None:
    """Returns the whole number that an operand of a loop's condition begins as; None where it is not known.

    A counter is taken to grow by one, which is how JAX makes its loops.
    """
    if x.opcode == "get-tuple-element" and loop.operands[0] in around:
        start = around[loop.operands[0]]
        if start.opcode != "tuple":
            return None
        x = around[start.operands[x.index]]
        while x.opcode in ("copy", "bitcast", "copy-done", "copy-start") and x.operands[0] in around:
            x = around[x.operands[0]]
    found = re.match(r"(-?\d+)\)", x.rest) if x.opcode == "constant" else None
    return int(found[1]) if found else None


def _reached(program: Program, computation: str) -> list[str]:
    """Returns the computations that one runs, those within fusions left out."""
    found = []
    for x in program.computations[computation]:
        if x.opcode in ("while", "conditional", "call", "async-start"):
            for name in x.called:
                found += [name, *_reached(program, name)]
    return [name for name in dict.fromkeys(found) if name in program.computations]
