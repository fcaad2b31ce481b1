"""Plans that are held against what compilers make of the same shapes, chips and meshes, and the figures of each."""

import dataclasses
import time
from typing import Any

import jax

from eval.chips.figures import step_exchanges
from eval.chips.program import Program
from jax_smash.cli.plan import sizes
from jax_smash.planning.compiled import Compiled, compiled_programs
from jax_smash.planning.planner import Plan
from jax_smash.planning.question import Question
from jax_smash.planning.topology import parse_topology
from jax_smash.planning.work import exchanged
from jax_smash.sharding import parse_mesh

NODES = 1
"""Entries a row in plain decoding."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One plan.

    Attributes:
      shape: a preset's name.
      device, mesh: what it runs on, and how it is divided; None for one device.
      batch, context: rows, and slots of each.
      layers: that are kept of the shape; None keeps all.
      method, tree, weights, dtype: as in `Question`.
    """

    shape: str
    device: str
    mesh: str | None = None
    batch: int = 8
    context: int = 2048
    layers: int | None = 4
    method: str = "ar"
    tree: str = "auto"
    weights: str = "plain"
    dtype: str = "bfloat16"

    def plan(self) -> Plan:
        """Makes the plan.

        Raises:
          ValueError: the mesh divides neither the devices nor the model.
        """
        return Plan(
            Question(
                sizes(self.shape, self.layers),
                parse_topology(self.device),
                None if self.mesh is None else parse_mesh(self.mesh),
                dtype=self.dtype,
                weights=self.weights,
                batch=self.batch,
                context=self.context,
                method=self.method,
                tree=self.tree,
            )
        )


CASES = {
    "1b-v5e": Case("llama-3.2-1b", "v5e"),
    "1b-v5e-int8": Case("llama-3.2-1b", "v5e", weights="int8"),
    "1b-v5e-tree": Case("llama-3.2-1b", "v5e", method="recycling", tree="recycling-80", layers=2),
    "1b-v6e": Case("llama-3.2-1b", "v6e", batch=32, context=4096),
    "1b-tpu7x": Case("llama-3.2-1b", "tpu7x:1x1x1", "tp=2"),
    "gemma-v6e": Case("gemma-2-2b", "v6e"),
    "qwen3-v5e": Case("qwen3-0.6b", "v5e:2x2", "data=4", batch=32, context=1024),
    "phi3-v6e": Case("phi-3-mini", "v6e:2x2", "tp=4", context=4096),
    "8b-v6e": Case("llama-3.1-8b", "v6e:2x2", "tp=4"),
    "8b-v5e-fsdp": Case("llama-3.1-8b", "v5e:2x2", "fsdp=2,tp=2"),
    "8b-v5p": Case("llama-3.1-8b", "v5p:2x2x1", "data=2,tp=2"),
    "70b-v5p": Case("llama-3.1-70b", "v5p:2x2x2", "tp=8", batch=16, context=4096),
}
"""Truncated shapes, for every kind of chip and every axis of a mesh."""

WHOLE = {
    "8b-v6e-whole": Case("llama-3.1-8b", "v6e:2x2", "tp=4", 16, 4096, None),
    "70b-v5p-whole": Case("llama-3.1-70b", "v5p:4x4x4", "data=8,tp=8", 64, 4096, None),
    "405b-v5e-whole": Case("llama-3.1-405b", "v5e:16x16", "fsdp=32,tp=8", 32, 4096, None),
}
"""Whole shapes, which take minutes to compile."""

HERE = {"100m-cpu": Case("llama-100m", "cpu", None, 4, 512, 2, dtype="float32")}
"""Shapes for this machine, which take seconds."""


def figures(case: Case) -> dict[str, Any]:
    """Compiles a case, and returns bytes of a device by the compiler and by the plan.

    A device has the arguments of decoding, which are all that it holds, and what the program that takes more needs
    beside. `sent_mb` is what it sends in a step of decode, with the collectives beside it; None where this jaxlib
    cannot read the program.

    Raises:
      ValueError, MemoryError: as of `compiled_programs`.
    """
    plan, began = case.plan(), time.perf_counter()
    found = {one.name: one for one in compiled_programs(plan)}
    seconds = time.perf_counter() - began
    memory, beside = plan.memory(), plan.temporaries(case.batch)
    total = found["decode"].argument_bytes + max(one.temporary_bytes for one in found.values())
    told = {
        "mesh": str(plan.question.shape),
        "prefill_chunk": plan.chunk(case.batch),
        "argument_mb": found["decode"].argument_bytes / 1e6,
        "planned_argument_mb": memory.arguments / 1e6,
    }
    for name, one in found.items():
        told |= {f"{name}_mb": one.temporary_bytes / 1e6, f"planned_{name}_mb": beside[name] / 1e6}
    return (
        dataclasses.asdict(case)
        | told
        | {
            "total_mb": total / 1e6,
            "planned_total_mb": memory.total / 1e6,
            "ratio": memory.total / total,
            "planned_sent_mb": planned_sent_bytes(plan) / 1e6,
            "compile_s": seconds,
            **exchanges(found["decode"]),
        }
    )


def exchanges(decode: Compiled) -> dict[str, Any]:
    """Returns what devices exchange in a step, as of `step_exchanges`, and `sent_mb` of a device.

    Where this jaxlib cannot read the program, all are None.
    """
    try:
        found = step_exchanges(Program.of(decode.program))
    except jax.errors.JaxRuntimeError:
        found = dict.fromkeys(("collectives", "collectives_outside_loop", "link_bytes"))
    sent = found.pop("link_bytes")
    return {"sent_mb": None if sent is None else sent / 1e6} | found


def planned_sent_bytes(plan: Plan) -> float:
    """Returns the bytes that a device sends in a step by the plan."""
    nodes = plan.shares.nodes if plan.tree is None else plan.tree.nodes
    return exchanged(plan.sizes, plan.question.batch, nodes, logits=nodes, drafting=nodes > NODES)
