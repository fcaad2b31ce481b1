"""What the compiler says of a plan's programs: the real ones, for its devices; nothing is allocated, nothing run."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from jax_smash.decode.programs import compile_lowered
from jax_smash.planning.abstract import Abstract
from jax_smash.planning.planner import Plan
from jax_smash.planning.topology import HOST, devices, has_compiler
from jax_smash.platform import tracing_for
from jax_smash.sharding import add_virtual_devices, make_mesh, on_mesh

PROGRAMS = ("prefill", "decode")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """One program of a plan, compiled.

    Attributes:
      name: of `PROGRAMS`.
      kind: of the devices that it is compiled for, as JAX names them.
      program: what `jax.jit(f).lower(...).compile()` returned.
      arguments: of all of the plan's programs.
    """

    name: str
    kind: str
    program: Any
    arguments: Abstract

    @property
    def argument_bytes(self) -> int:
        """Bytes that one device is given."""
        return self.program.memory_analysis().argument_size_in_bytes

    @property
    def temporary_bytes(self) -> int:
        """Bytes that one device needs beside: temporaries, and what is returned in no argument's place."""
        memory = self.program.memory_analysis()
        return memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes


def compiled_programs(plan: Plan, names: Sequence[str] = PROGRAMS) -> Iterator[Compiled]:
    """Compiles programs of a plan, one after another.

    Programs for TPUs are compiled by libtpu. Where it is missing, and for GPUs, virtual devices of this machine's
    processor stand for the devices: their arguments are of the same bytes, their temporaries of a processor's programs.

    Args:
      plan: of which batch, method and mesh are compiled.
      names: of the programs.

    Raises:
      ValueError: this machine has too few devices to stand for them, or the compiler does not know the topology.
      MemoryError: a program does not fit the device.
    """
    question = plan.question
    own = question.topology.is_tpu and has_compiler()
    mesh = _mesh(plan, own)
    with tracing_for("tpu" if own else HOST):
        arguments = question.arguments(
            mesh,
            batch=question.batch,
            tree=None if plan.tree is None else plan.tree.tree,
            chunk=plan.chunk(question.batch),
        )
    kind = mesh.devices.flat[0].device_kind
    for name in names:
        function, args = arguments.programs[name]
        with tracing_for("tpu" if own else HOST), on_mesh(mesh):
            program = _compiled(function.lower(*args), kind, name)
        yield Compiled(name, kind, program, arguments)


def compile_plan(plan: Plan) -> dict[str, Any]:
    """Compiles the programs of a plan, and tells what they take beside what the plan says.

    Args:
      plan: as of `compiled_programs`.

    Returns:
      `compiled_for`, and a row for each program: bytes of arguments and temporaries by the compiler and by the plan. Of
      arguments the plan knows those of decoding, which takes all that a device holds.

    Raises:
      ValueError, MemoryError: as of `compiled_programs`.
    """
    expected, temporaries = plan.memory(), plan.temporaries(plan.question.batch)
    found = list(compiled_programs(plan))
    rows = [
        {
            "program": one.name,
            "argument_bytes": one.argument_bytes,
            "temporary_bytes": one.temporary_bytes,
            "total_bytes": one.argument_bytes + one.temporary_bytes,
            # A program is given what it uses alone: a prefill, mostly, no head.
            "planned_argument_bytes": expected.arguments if one.name == "decode" else None,
            "planned_temporary_bytes": temporaries[one.name],
        }
        for one in found
    ]
    return {"compiled_for": found[0].kind, "programs": rows}


def memory_figures(compiled: Any) -> dict[str, float]:
    """Returns the memory that a compiled program takes, in 10⁶ bytes."""
    memory = compiled.memory_analysis()
    total = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    return {
        "total_mb": (total + memory.output_size_in_bytes - memory.alias_size_in_bytes) / 1e6,
        "argument_mb": memory.argument_size_in_bytes / 1e6,
        "output_mb": memory.output_size_in_bytes / 1e6,
        "reused_mb": memory.alias_size_in_bytes / 1e6,
        "temp_mb": memory.temp_size_in_bytes / 1e6,
        "code_mb": memory.generated_code_size_in_bytes / 1e6,
    }


def _mesh(plan: Plan, own: bool) -> Mesh:
    """Returns the devices to compile for."""
    question = plan.question
    if own:
        # A topology without a shape is one chip.
        name = question.topology.name
        there = devices(name if ":" in name else f"{name}:{'x'.join('1' * len(question.topology.sizes))}")
    else:
        add_virtual_devices(question.shape)
        there = jax.devices(HOST)
        if len(there) < question.shape.size:
            raise ValueError(
                f"to compile for {question.topology.name}, this machine must stand in with {question.shape.size} "
                f"virtual devices; it has {len(there)}"
            )
    return make_mesh(question.shape, devices=list(there)[: question.shape.size])


def _compiled(lowered: Any, kind: str, name: str) -> Any:
    try:
        return compile_lowered(lowered, kind)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise MemoryError(f"{name} does not fit: {' '.join(str(error).split())[:300]}") from error
