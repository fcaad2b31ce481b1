"""The figures of one compiled program: memory, traffic, copies, modelled time, what devices exchange."""

import dataclasses
import importlib.metadata
from collections.abc import Iterable
from typing import Any

import jax

from eval.chips.ideal import ideal
from eval.chips.kernel_calls import known_kernels
from eval.chips.links import link_bytes
from eval.chips.modelled import modelled
from eval.chips.program import Instruction, Program, collectives, copies, host_traffic, tally
from eval.chips.relayouts import relayouts
from eval.chips.traffic import Run, held_bytes, moved, runs, unknown_loops
from jax_smash.chips import Chip
from jax_smash.config import ModelConfig
from jax_smash.planning.abstract import Abstract, share
from jax_smash.quantise import has_int8


class UnreadableProgramError(RuntimeError):
    """A compiled program's text cannot be read: this jaxlib is older than the chip's compiler."""


def readable(name: str, compiled: Any, chip: str) -> Program:
    """Returns a compiled program, read.

    Args:
      name: of the program.
      compiled: what `jax.jit(f).lower(...).compile()` returned.
      chip: that it is compiled for.

    Raises:
      UnreadableProgramError: this version of jaxlib does not know an instruction of the chip's compiler.
    """
    try:
        program = Program.of(compiled)
        return dataclasses.replace(program, kernels=known_kernels(program))
    except jax.errors.JaxRuntimeError as error:
        version = importlib.metadata.version("jaxlib")
        raise UnreadableProgramError(
            f"the program {name} for {chip} cannot be read with jaxlib {version}: use a newer JAX"
        ) from error


def program_figures(
    name: str, program: Program, arguments: Abstract, config: ModelConfig, chip: Chip | None
) -> dict[str, Any]:
    """Returns what a program's instructions tell: of a step, for `decode`, of a call, for the others.

    `body_bytes` is what is read from main memory and written to it. `held_bytes` is what the loop keeps in fast memory
    from step to step, so that no step reads it; `traffic` is both over the least possible. `unknown_loops` are counted
    as if they ran once. Kernels count with a full cache; `uncounted_kernels` as if each operand were read once.

    Args:
      name: prefill, start or decode.
      program: compiled and read.
      arguments: that it takes.
      config: the target's sizes.
      chip: that it is compiled for; None leaves modelled times out.

    Raises:
      ValueError: `decode` has no loop.
    """
    loop = _loop(name, program)
    body = program.entry if loop is None else loop.body or ""
    found, least = list(runs(program, body)), ideal(name, config, arguments)
    size, held = moved(program, found), held_bytes(program, loop) if loop else 0
    inside, everything = list(program.instructions(body)), list(program.instructions())
    reasons = copy_reasons(arguments, config)
    told = {
        "body_bytes": size,
        "held_bytes": held,
        "ideal_bytes": least.bytes,
        "least": least.parts(),
        "traffic": (size + held) / least.bytes,
        "copies": [x.row() for x in relayouts(program, body if loop else None, reasons)],
        "cache_copies": len(copies(everything, arguments.cache_shapes)),
        **_exchanges(program, body, found),
        "host_transfers": len(host_traffic(everything)),
        "unknown_loops": unknown_loops(program, body),
        "uncounted_kernels": sorted(
            {x.name for x in everything if '"tpu_custom_call"' in x.rest and x.name not in program.kernels}
        ),
        "inner_loops": sum(x.body is not None for x in inside),
    }
    if chip is None:
        return told
    time = modelled(program, body, chip)
    kind = "s8" if has_int8(arguments.params["target"]) else "bf16"
    return told | {
        "modelled_ms": time.ms,
        "scheduled_share": time.scheduled_share,
        "roofline_ms": least.ms(chip, kind),
        "dearest": time.dearest,
    }


def step_exchanges(program: Program) -> dict[str, Any]:
    """Returns what devices exchange in a step of `decode`, and outside its loop.

    Args:
      program: compiled and read.

    Raises:
      ValueError: it has no loop.
    """
    body = _loop("decode", program).body or ""
    return _exchanges(program, body, list(runs(program, body)))


def copy_reasons(arguments: Abstract, config: ModelConfig) -> dict[str, set[tuple[int, ...]]]:
    """Returns the shapes of large arrays by what it means that one of them is copied."""
    batch = share(arguments.chunk.tokens)[0]
    heads = config.held_kv_heads, config.num_heads // config.held_kv_heads, config.head_width
    kv_heads, group, head_width = heads
    widths = {1, arguments.nodes, arguments.strategy.block, arguments.chunk.tokens.shape[1]}
    made = [(kv_heads, group + n, head_width) for n in (1, 2)] + [(kv_heads * (group + 2) * head_width,)]
    return {
        "weight stored in another layout": arguments.weight_shapes,
        "cache in another layout": arguments.cache_shapes,
        "logits": {(batch, width, config.vocab_size) for width in widths},
        "drafter's state": arguments.drafter_shapes,
        "what slots are chosen by": arguments.channel_shapes,
        "queries regrouped by head": {(batch, width, *heads) for width in widths},
        "queries, keys and values regrouped by head": {(batch, width, *shape) for width in widths for shape in made},
    }


def _loop(name: str, program: Program) -> Any:
    if name != "decode":
        return None
    loops = [x for x in program.computations[program.entry] if x.body]
    if not loops:
        raise ValueError("decode must have a loop; the compiled program has none")
    return max(loops, key=lambda x: moved(program, list(runs(program, x.body or ""))))


def _exchanges(program: Program, body: str, found: Iterable[Run]) -> dict[str, Any]:
    inside = list(program.instructions(body))
    return {
        "collectives": tally(collectives(inside)),
        "collectives_outside_loop": tally(collectives(_outside(program.instructions(), inside))),
        "link_bytes": sum(run.times * _sent(program, run.instruction) for run in found),
    }


def _sent(program: Program, x: Instruction) -> int:
    """Returns the bytes that a device sends for an instruction, in a fusion and by another core too."""
    inner = x.called if x.opcode in ("custom-call", "custom-call-start", "fusion") else []
    within = [y for name in inner for y in program.instructions(name)]
    return sum(link_bytes(y, program.devices) for y in (x, *within))


def _outside(everything: Iterable[Any], inside: Iterable[Any]) -> Iterable[Any]:
    within = {id(x) for x in inside}
    return (x for x in everything if id(x) not in within)
