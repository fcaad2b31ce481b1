"""What a compiled program does, read from its text: copies, loops, collectives, traffic with the host."""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from eval.chips.arrays import Array, read_arrays

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "ragged-all-to-all", "reduce-scatter")
HOST_OPCODES = ("infeed", "outfeed", "recv", "send")
HOST_TARGETS = ("callback", "MoveToHost", "MoveToDevice", "annotate_device_placement")
"""Parts of the names of custom calls that leave the device."""

HOST_MEMORY, FAST_MEMORY = "S(5)", "S(1)"
"""Memory spaces of a TPU program, as layouts name them; its main memory has no name."""

_BEGIN = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.+?) ([a-z][a-z\-]*)\((.*)")
_CALLED = re.compile(r"(?:calls|body|condition|to_apply|\w+_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"(?:branch_computations|called_computations)=\{([^}]*)\}")
_OPERAND = re.compile(r"%([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a compiled program.

    Attributes:
      name, opcode: of the instruction.
      shape: what it returns, as text: element type, sizes, layout and memory space.
      rest: operands and attributes, as text.
      root: its computation returns what it returns.
    """

    name: str
    opcode: str
    shape: str
    rest: str
    root: bool = False

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays that it returns."""
        return read_arrays(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the largest array that it returns, padding left out."""
        return max((x.bytes for x in self.arrays), default=0)

    @property
    def largest(self) -> str:
        """Element type and sizes of the largest array that it returns, as in bf16[2,64]."""
        return str(max(self.arrays, key=lambda x: x.bytes, default=""))

    @functools.cached_property
    def operands(self) -> tuple[str, ...]:
        """Names of what it reads, in order."""
        depth = 1
        for end, letter in enumerate(self.rest):
            depth += (letter == "(") - (letter == ")")
            if not depth:
                return tuple(_OPERAND.findall(self.rest[:end]))
        return ()

    @property
    def op_name(self) -> str:
        """What JAX calls it; "" where it does not tell."""
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found[1] if found else ""

    @property
    def index(self) -> int:
        """Number of the parameter, or of the element that it takes of a tuple; −1 for other instructions."""
        found = re.match(r"(\d+)\)", self.rest) if self.opcode == "parameter" else re.search(r" index=(\d+)", self.rest)
        return int(found[1]) if found else -1

    @property
    def cycles(self) -> int:
        """Cycles by the compiler's own estimate; 0 where it has none."""
        found = re.search(r'estimated_cycles":"(\d+)"', self.rest)
        return int(found[1]) if found else 0

    @property
    def body(self) -> str | None:
        """Name of the computation that it repeats; None where it is no loop."""
        found = re.search(r"body=%?([\w.\-]+)", self.rest)
        return found[1] if self.opcode == "while" and found else None

    @property
    def condition(self) -> str | None:
        """Name of the computation that says whether it goes on; None where it is no loop."""
        found = re.search(r"condition=%?([\w.\-]+)", self.rest)
        return found[1] if self.opcode == "while" and found else None

    @property
    def called(self) -> list[str]:
        """Names of the computations that it runs."""
        groups = [name.strip(" %") for group in _BRANCHES.findall(self.rest) for name in group.split(",")]
        return [*_CALLED.findall(self.rest), *groups]


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
      computations: by name.
      entry: name of the one that is the program itself.
      kernels: what is known of kernels, by the names of their instructions; see `eval.chips.kernel_calls`.
      devices: that run it together.
    """

    computations: dict[str, list[Instruction]]
    entry: str
    kernels: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    devices: int = 1

    @classmethod
    def read(cls, text: str) -> "Program":
        """Reads a compiled program's text.

        Raises:
          ValueError: the text has no entry computation.
        """
        computations: dict[str, list[Instruction]] = {}
        entry, current = None, None
        for line in text.splitlines():
            begin = _BEGIN.match(line)
            if begin:
                current = computations.setdefault(begin[2], [])
                entry = begin[2] if begin[1] else entry
            elif line.startswith("}"):
                current = None
            elif current is not None and (found := _INSTRUCTION.match(line)):
                name, shape, opcode, rest = found.groups()
                root = line.lstrip().startswith("ROOT ")
                current.append(Instruction(name=name, opcode=opcode, shape=shape, rest=rest, root=root))
        if entry is None:
            raise ValueError(f"a program's text must have an entry computation; got {text[:60]!r}")
        counts = re.findall(r"(?:num_partitions|replica_count)=(\d+)", text.partition("\n")[0])
        return cls(computations=computations, entry=entry, devices=math.prod(map(int, counts)))

    @classmethod
    def of(cls, compiled: Any) -> "Program":
        """Reads what `jax.jit(f).lower(...).compile()` returned."""
        return cls.read(compiled.as_text())

    def instructions(self, start: str | None = None) -> Iterator[Instruction]:
        """Yields the instructions of a computation (the program's own by default) and of all that it runs."""
        seen, waiting = set(), [start or self.entry]
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self.computations:
                continue
            seen.add(name)
            for instruction in self.computations[name]:
                yield instruction
                waiting += instruction.called

    def named(self, computation: str) -> dict[str, Instruction]:
        """Returns a computation's instructions by name."""
        if computation not in self._named:
            self._named[computation] = {x.name: x for x in self.computations[computation]}
        return self._named[computation]

    @functools.cached_property
    def _named(self) -> dict[str, dict[str, Instruction]]:
        return {}

    @property
    def bodies(self) -> list[str]:
        """Names of the bodies of the program's loops, those of inner loops left out."""
        return [x.body for x in self.computations[self.entry] if x.body]

    @functools.cached_property
    def loop(self) -> tuple[Instruction, ...]:
        """Everything that runs inside the program's loops; empty where it has none."""
        return tuple(x for body in self.bodies for x in self.instructions(body))


def copies(instructions: Iterable[Instruction], shapes: Collection[tuple[int, ...]]) -> list[Instruction]:
    """Returns the instructions that copy or transpose one of some arrays, also those inside a fusion.

    A copy counts as one of an array's where it has as many elements and an axis of the size of each of the array's last
    two: axes change places and leading ones are merged on the way. A move between memory spaces is left out: it is a
    prefetch into fast memory, or its way back. So is a copy that is made in fast memory.

    Args:
      instructions: of a program.
      shapes: of the arrays.
    """
    return [
        x
        for x in instructions
        if x.opcode in ("copy", "transpose") or (x.opcode == "copy-start" and not _moves(x))
        if any(
            _resembles(array.sizes, shape) and FAST_MEMORY not in array.layout for array in x.arrays for shape in shapes
        )
    ]


def host_traffic(instructions: Iterable[Instruction]) -> list[Instruction]:
    """Returns the instructions that exchange anything with the host."""
    return [
        x
        for x in instructions
        if x.opcode.removesuffix("-done") in HOST_OPCODES
        or "is_host_transfer=true" in x.rest
        or HOST_MEMORY in x.shape
        or (x.opcode == "custom-call" and any(name in _target(x) for name in HOST_TARGETS))
    ]


def collectives(instructions: Iterable[Instruction]) -> list[Instruction]:
    """Returns the instructions in which devices exchange arrays."""
    return [x for x in instructions if x.opcode.removesuffix("-start") in COLLECTIVES]


def tally(instructions: Iterable[Instruction]) -> list[dict[str, Any]]:
    """Returns kind, shape, number and megabytes of each of the collectives that are alike, the largest first.

    Where one returns several arrays, the largest is its shape. Megabytes are of all of a kind and shape together.
    """
    counts = collections.Counter((x.opcode.removesuffix("-start"), x.largest, x.bytes) for x in instructions)
    alike = sorted(counts.items(), key=lambda item: (-item[0][2], item[0]))
    return [
        {"kind": kind, "shape": shape, "count": count, "megabytes": count * size / 1e6}
        for (kind, shape, size), count in alike
    ]


def _moves(x: Instruction) -> bool:
    """Whether an asynchronous copy leads from one memory space to another."""
    return len({FAST_MEMORY in array.layout for array in x.arrays if array.sizes}) > 1


def _resembles(sizes: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return math.prod(sizes) == math.prod(shape) and set(shape[-2:]) <= set(sizes)


def _target(x: Instruction) -> str:
    found = re.search(r'custom_call_target="([^"]*)"', x.rest)
    return found[1] if found else ""
