"""Memory and work of the decoding programs on a chip that is not at hand.

    python -m eval.compile --shape llama-3.1-8b --chip v6e:1x1 --batch-size 8 --slots 4096 --json memory.json

The programs are compiled for the chip, down to its instructions, and nothing is allocated or run: a machine without the
chip and without the memory will do. Programs run on one device of the topology, or with `--mesh` on as many as it has;
then what the devices exchange is listed.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from eval.abstract import Abstract, abstract, share_bytes
from eval.options import Names
from eval.program import Program, collectives, copies, estimated_cycles, host_traffic, tally
from eval.report import check_output, heading, print_table, run_program, write_json
from eval.topology import check_chip, devices, memory_bytes
from jax_smash.checkpoints.configuration import shape_config
from jax_smash.config import ModelConfig
from jax_smash.decode.programs import compile_lowered
from jax_smash.plan import prefill_chunk, tree_bytes
from jax_smash.quantise import check_weights
from jax_smash.sharding import add_virtual_devices, make_mesh, mesh_of, on_mesh

PROGRAMS = ("prefill", "start", "decode")
COLUMNS = (
    "program",
    "fits",
    "total_mb",
    "argument_mb",
    "temporary_mb",
    "gigaflops",
    "read_and_written_mb",
    "cache_copies",
    "weight_copies_mb",
    "host_transfers",
    "compile_s",
)
EXCHANGED = ("program", "kind", "shape", "count", "megabytes")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Compiles prefill, start and decode for a chip and tells what they need.

    Attributes:
      shape: a preset's name (llama-3.2-1b, llama-3.1-8b, …) or a directory with a config.json.
      chip: a topology (v5e:1x1, v6e:1x1, tpu7x:2x2x1, …), or cpu for this machine.
      programs: which to compile, of prefill, start and decode.
      num_layers: keep only this many layers.
      batch_size: rows.
      slots: capacity of the cache a row.
      prefill_chunk: entries a row that one prefill reads; by default what a quarter of the chip's memory allows.
      max_new_tokens: of each row.
      sampled: rows sample, with top-k and top-p; else greedily.
      dtype: of the weights.
      weights: int8 holds matrices as 8-bit integers.
      mesh: devices of the topology to divide the model and its rows over, as in fsdp=2,tp=2.
      json: file to write.
      overwrite: replace the file if it exists.
    """

    shape: str
    chip: str = "v5e:1x1"
    programs: Names = PROGRAMS
    num_layers: int | None = None
    batch_size: int = 1
    slots: int = 4096
    prefill_chunk: int | None = None
    max_new_tokens: int = 256
    sampled: bool = False
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    weights: Literal["plain", "int8"] = "plain"
    mesh: str | None = None
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be compiled.

        Raises:
          ValueError: an option is out of range or malformed, or the chip is unknown.
          ImportError: the compiler for the chip is missing.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        for name in ("num_layers", "batch_size", "slots", "prefill_chunk", "max_new_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        if unknown := [name for name in self.programs or ("",) if name not in PROGRAMS]:
            raise ValueError(f"programs must be of {', '.join(PROGRAMS)}; got {unknown[0]!r}")
        check_weights(self.weights)
        check_chip(self.chip)
        check_output(self.json, overwrite=self.overwrite)

    def config(self) -> ModelConfig:
        """Returns the shape, with as many layers as are asked for.

        Raises:
          ValueError: there is no such shape, or it has fewer layers.
        """
        config = shape_config(self.shape)
        layers = self.num_layers or config.num_layers
        if layers > config.num_layers:
            raise ValueError(f"num_layers must be at most the shape's {config.num_layers}; got {layers}")
        return dataclasses.replace(config, num_layers=layers, layer_kinds=config.layer_kinds[:layers])

    def chunk(self) -> int:
        """Returns how many entries a row one prefill reads."""
        if self.prefill_chunk is not None:
            return self.prefill_chunk
        memory = memory_bytes(self.chip)
        return prefill_chunk(
            self.config(),
            batch=self.batch_size,
            slots=self.slots,
            dtype=jnp.dtype(self.dtype),
            budget=None if memory is None else memory // 4,
        )


def measure(settings: Settings) -> dict[str, Any]:
    """Compiles the programs and returns the report without its heading.

    Raises:
      ValueError, ImportError, OSError: an option is wrong, or the compiler is missing.
    """
    settings.check()
    add_virtual_devices(settings.mesh)
    config, there = settings.config(), devices(settings.chip)
    arguments = abstract(
        config,
        there[0] if settings.mesh is None else make_mesh(settings.mesh, devices=there),
        batch=settings.batch_size,
        slots=settings.slots,
        chunk=settings.chunk(),
        max_new_tokens=settings.max_new_tokens,
        sampled=settings.sampled,
        dtype=jnp.dtype(settings.dtype),
        weights=settings.weights,
    )
    cache = arguments.state.rows.cache
    return {
        "chip": {
            "topology": settings.chip,
            "kind": there[0].device_kind,
            "memory_bytes": memory_bytes(settings.chip),
        },
        "model": {
            "name": settings.shape,
            "num_layers": config.num_layers,
            "weight_bytes": tree_bytes(arguments.params),
            "weight_bytes_a_device": share_bytes(arguments.params),
            "cache_bytes": tree_bytes((cache.keys, cache.values)),
            "cache_bytes_a_device": share_bytes((cache.keys, cache.values)),
            "prefill_chunk": settings.chunk(),
        },
        "rows": list(_rows(arguments, settings.programs, there[0].device_kind)),
    }


def _rows(arguments: Abstract, names: Sequence[str], kind: str) -> Iterator[dict[str, Any]]:
    for name in names:
        function, args = arguments.programs[name]
        began = time.perf_counter()
        try:
            with on_mesh(mesh_of(args)):
                compiled = compile_lowered(function.lower(*args), kind)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            # The compiler gives up before there is a program to read.
            yield {"program": name, "fits": False, "why": " ".join(str(error).split())[:400]}
            continue
        seconds = time.perf_counter() - began
        yield {"program": name, "fits": True} | figures(name, compiled, arguments) | {"compile_s": seconds}


def figures(name: str, compiled: Any, arguments: Abstract) -> dict[str, Any]:
    """Returns what a compiled program needs and does; MB are 10⁶ bytes.

    `weight_copies_mb` is what every call copies outside loops because an operation wants weights in another layout than
    they are stored in. `estimated_cycles` are the compiler's own: of one step, for `decode`. `collectives` are what the
    devices exchange, by kind and shape: in one step, for `decode`; what it exchanges outside its loop stands apart.
    """
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    total = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    return {
        "total_mb": (total + memory.output_size_in_bytes - memory.alias_size_in_bytes) / 1e6,
        "argument_mb": memory.argument_size_in_bytes / 1e6,
        "output_mb": memory.output_size_in_bytes / 1e6,
        "reused_mb": memory.alias_size_in_bytes / 1e6,
        "temporary_mb": memory.temp_size_in_bytes / 1e6,
        "code_mb": memory.generated_code_size_in_bytes / 1e6,
        "gigaflops": cost.get("flops", 0.0) / 1e9,
        "read_and_written_mb": cost.get("bytes accessed", 0.0) / 1e6,
    } | _instructions(name, _readable(compiled), arguments)


def _readable(compiled: Any) -> Program | None:
    try:
        return Program.of(compiled)
    except jax.errors.JaxRuntimeError:
        # A jaxlib older than the chip's compiler cannot read every program that it makes.
        return None


def _instructions(name: str, program: Program | None, arguments: Abstract) -> dict[str, Any]:
    """Returns what a program's instructions tell; None for each where they cannot be read."""
    names = (
        "estimated_cycles",
        "cache_copies",
        "weight_copies_mb",
        "collectives",
        "collectives_outside_loop",
        "host_transfers",
        "inner_loops",
    )
    if program is None:
        return dict.fromkeys(names)
    everything = list(program.instructions())
    weight_copies = copies(program.computations[program.entry], arguments.weight_shapes)
    body = program.bodies[0] if name == "decode" else program.entry
    inside = list(program.instructions(body))
    values = (
        estimated_cycles(program, body) or None,
        len(copies(everything, arguments.cache_shapes)),
        sum(x.bytes for x in weight_copies) / 1e6,
        tally(collectives(inside)),
        tally(x for x in collectives(everything) if x not in inside),
        len(host_traffic(everything)),
        sum(x.body is not None for x in program.loop) if name == "decode" else len(program.bodies),
    )
    return dict(zip(names, values, strict=True))


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Compiles, prints a table and writes the report."""
    # The chip is compiled for, not looked for.
    jax.config.update("jax_platforms", "cpu")
    found = measure(settings)
    report = heading("eval.compile", arguments, dataclasses.asdict(settings)) | found
    memory = found["chip"]["memory_bytes"]
    room = "" if memory is None else f" of {memory / 1e6:,.0f} MB"
    shown = [row | {"fits": "yes" if row["fits"] else "no"} for row in report["rows"]]
    where = "one" if settings.mesh is None else f"{settings.mesh} of"
    print_table(f"{settings.shape} on {where} {found['chip']['kind']}{room}", shown, COLUMNS)
    if settings.mesh is not None:
        exchanged = [{"program": row["program"]} | one for row in shown for one in row.get("collectives") or ()]
        print_table("What devices exchange in a call, and in a step of decode", exchanged, EXCHANGED)
    if settings.json is not None:
        write_json(settings.json, report)


if __name__ == "__main__":
    run_program(Settings, main, compilation_cache=False)
