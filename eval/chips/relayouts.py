"""Copies and transposes of a compiled program: arrays that are moved only to lie in another way.

A move between memories that keeps the layout is a fetch and is left out.
"""

import dataclasses
import math
import operator
from collections.abc import Collection, Mapping
from typing import Any

from eval.chips.arrays import Array
from eval.chips.program import Instruction, Program
from eval.chips.traffic import Run, runs

LEAST = 4_000_000
"""Bytes of an array from which a copy of it counts."""

LAYOUT = ("bitcast", "copy", "parameter", "reshape", "transpose", "tuple", "get-tuple-element")
"""Opcodes of a fusion that changes nothing but the layout."""

MOVES = ("copy", "reshape", "transpose")


@dataclasses.dataclass(frozen=True)
class Relayout:
    """A copy of an array, as often as a program makes it.

    Attributes:
      shape: element type and sizes.
      bytes: written, of all times together.
      times: how often in a call; in a step, for what `decode` repeats.
      place: `loop`, or `call` for what is made once a call.
      reason: of `reasons`; None where none is named.
    """

    shape: str
    bytes: int
    times: int
    place: str
    reason: str | None

    def row(self) -> dict[str, Any]:
        """Returns what a report says of it."""
        return dataclasses.asdict(self)


def relayouts(
    program: Program, loop: str | None, reasons: Mapping[str, Collection[tuple[int, ...]]], least: int = LEAST
) -> list[Relayout]:
    """Returns the large copies and transposes of a program, the largest first.

    Args:
      program: compiled.
      loop: name of the body that is repeated an unknown number of times, counted once; None where there is none.
      reasons: shapes of arrays, by what it means that one of them is copied.
      least: bytes of the smallest array that counts.
    """
    inside = {(run.computation, run.instruction.name) for run in runs(program, loop)} if loop else set()
    found = []
    for run in runs(program, program.entry):
        array = _copied(program, run)
        if array is None or array.padded_bytes < least:
            continue
        found.append(
            Relayout(
                shape=str(array),
                bytes=array.padded_bytes * run.times,
                times=run.times,
                place="loop" if (run.computation, run.instruction.name) in inside else "call",
                reason=_reason(array, reasons),
            )
        )
    return sorted(found, key=lambda x: -x.bytes)


def _copied(program: Program, run: Run) -> Array | None:
    """Returns the array that an operation copies; None for another operation."""
    x, named = run.instruction, program.named(run.computation)
    if x.opcode == "fusion":
        inside = program.computations[x.called[0]]
        moves = any(y.opcode in MOVES for y in inside) and all(y.opcode in LAYOUT for y in inside)
        return _largest(x) if moves else None
    if x.opcode in ("reshape", "transpose"):
        return _largest(x)  # One that moves nothing is a bitcast.
    if x.opcode == "copy-start":
        return x.arrays[0] if x.arrays[0].space == x.arrays[1].space else None
    if x.opcode != "copy" or x.operands[0] not in named or not x.arrays:
        return None
    source, result = named[x.operands[0]].arrays[0], x.arrays[0]
    fetched = source.space != result.space and source.order == result.order
    return None if fetched else result


def _largest(x: Instruction) -> Array:
    return max(x.arrays, key=lambda array: array.padded_bytes)


def _reason(array: Array, reasons: Mapping[str, Collection[tuple[int, ...]]]) -> str | None:
    """Returns why an array is copied: whose axes it has, or else has in some order, or whose size or leading axes."""
    for alike in (operator.eq, _same_axes, _same_elements, _same_front):
        for reason, shapes in reasons.items():
            if any(alike(array.sizes, shape) for shape in shapes):
                return reason
    return None


def _same_axes(sizes: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return sorted(n for n in sizes if n > 1) == sorted(n for n in shape if n > 1)


def _same_elements(sizes: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return math.prod(sizes) == math.prod(shape)


def _same_front(sizes: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(shape) > 2 and sizes[:-1] == shape[:-1]
