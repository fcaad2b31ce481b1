"""Modelled time of a compiled program: nothing is run.

An operation takes as long as the slowest of four: the compiler's schedule, where it has one; its bytes over the chip's
bandwidth; the operations of its matrix products over the chip's peak; what it sends over the links between chips. Only
estimates of matrix products are schedules: those of other operations are far too high. An asynchronous copy into fast
memory runs beside other operations, so its bytes are those of the operation that reads them. Operations follow each
other.
"""

import dataclasses
from typing import Any

from eval.chips.links import link_bytes
from eval.chips.products import products
from eval.chips.program import Program
from eval.chips.traffic import NAMING, Run, runs, traffic
from jax_smash.chips import Chip

FETCHES = ("copy-start", "slice-start")
NAMES = ("bitcast", "get-tuple-element")

DEAREST = 10
"""Operations that a report lists."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """What an operation costs in all of its runs.

    Attributes:
      name, opcode, op_name: of the compiler's, and JAX's.
      times: how often it runs.
      bytes: of main memory.
      schedule_ms, memory_ms, product_ms, link_ms: by the compiler's schedule, bandwidth, peak, links.
    """

    name: str
    opcode: str
    op_name: str
    times: int
    bytes: int
    schedule_ms: float
    memory_ms: float
    product_ms: float
    link_ms: float = 0.0

    @property
    def ms(self) -> float:
        """Modelled time."""
        return max(self.schedule_ms, self.memory_ms, self.product_ms, self.link_ms)

    def row(self) -> dict[str, Any]:
        """Returns what a report says of it."""
        told = ("name", "opcode", "op_name", "times", "bytes", "ms")
        return {name: getattr(self, name) for name in told}


@dataclasses.dataclass(frozen=True)
class Modelled:
    """The modelled time of a program.

    Attributes:
      operations: in the order in which they run.
    """

    operations: tuple[Operation, ...]

    @property
    def ms(self) -> float:
        """Milliseconds of all operations."""
        return sum(x.ms for x in self.operations)

    @property
    def scheduled_share(self) -> float:
        """Share of the time that operations with a schedule take."""
        return sum(x.ms for x in self.operations if x.schedule_ms) / self.ms if self.ms else 0.0

    @property
    def dearest(self) -> list[dict[str, Any]]:
        """The operations that take longest, and how long."""
        return [x.row() for x in sorted(self.operations, key=lambda x: -x.ms)[:DEAREST] if x.ms]


def modelled(program: Program, computation: str, chip: Chip) -> Modelled:
    """Returns the modelled time of one run of a computation.

    Args:
      program: that it is of.
      computation: its name.
      chip: that the program is compiled for.
    """
    found = list(runs(program, computation))
    sizes = _charged(program, found)
    return Modelled(tuple(_operation(program, run, size, chip) for run, size in zip(found, sizes, strict=True)))


def _operation(program: Program, run: Run, size: int, chip: Chip) -> Operation:
    x, scale = run.instruction, 1e3 * run.times
    made = products(program, x, run.computation)
    return Operation(
        name=x.name,
        opcode=x.opcode,
        op_name=x.op_name,
        times=run.times,
        bytes=size * run.times,
        schedule_ms=scale * x.cycles / chip.clock if made else 0.0,
        memory_ms=scale * size / chip.bandwidth,
        product_ms=scale * sum(count / chip.peak(kind) for kind, count in made),
        # A ring along one axis of the torus sends both ways.
        link_ms=scale * link_bytes(x, program.devices) / chip.ring_bandwidth,
    )


def _charged(program: Program, found: list[Run]) -> list[int]:
    """Returns the bytes of each operation; those of an asynchronous copy are its first reader's."""
    sizes = [traffic(program, run.instruction, run.computation).total for run in found]
    place = {(run.computation, run.instruction.name): i for i, run in enumerate(found)}
    for i, run in enumerate(found):
        if run.instruction.opcode in FETCHES:
            reader = _reader(program, run)
            if reader in place:
                sizes[place[reader]] += sizes[i]
                sizes[i] = 0
    return sizes


def _reader(program: Program, run: Run) -> tuple[str, str] | None:
    """Returns the computation and the name of what first reads a result; None where it leaves the computation."""
    names = {run.instruction.name}
    for x in program.computations[run.computation]:
        if names.isdisjoint(x.operands):
            continue
        if x.opcode.endswith("-done") or x.opcode in NAMES or any(f'"{name}"' in x.rest for name in NAMING):
            names.add(x.name)
        else:
            return None if x.opcode == "tuple" else (run.computation, x.name)
    return None
