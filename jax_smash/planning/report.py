"""A plan as JSON holds it: bytes of a device, milliseconds, tokens a second."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from jax_smash.planning.gains import GRID, Drafted
from jax_smash.planning.planner import Memory, Plan, Speed
from jax_smash.planning.work import Part, seconds


def report(plan: Plan, *, most_ms: float | None = None) -> dict[str, Any]:
    """Returns all that a plan tells.

    Args:
      plan: the plan.
      most_ms: milliseconds that a token may take with the best batch; None for as many as it takes.
    """
    question, chip = plan.question, plan.chip
    speed, prefill, plain = plan.speed(), plan.prefill(), seconds(plan.plain_step(), chip)
    best = plan.best_batch(None if most_ms is None else most_ms / 1e3)
    return {
        "device": {
            "topology": question.topology.name,
            "devices": question.topology.devices,
            "mesh": str(question.shape),
            "memory_bytes": chip.memory,
            "bandwidth": chip.bandwidth,
            "peak": chip.peak(plan.sizes.weight_kind),
            "ridge": chip.peak(plan.sizes.weight_kind) / chip.bandwidth,
        },
        "model": {
            "family": question.config.family,
            "layers": question.config.num_layers,
            "dtype": question.dtype,
            "weights": question.weights,
            "kv_copies": question.held.kv_copies,
        },
        "batch": question.batch,
        "context": question.context,
        "prompt": question.tokens,
        "method": question.method,
        "tree": None if plan.tree is None else plan.tree.tree,
        "acceptance": question.acceptance,
        "memory": memory_fields(speed.memory),
        "decode": {"parts": _parts(plan.step(), plan), **_speed(speed), "plain_ms": 1e3 * plain, "gain": plan.gain()},
        "prefill": {"parts": _parts(prefill, plan), "chunk": plan.chunk(question.batch)},
        "time_to_first_token_ms": 1e3 * seconds(prefill, chip),
        "batches": [_speed(x) for x in plan.speeds()],
        "most_rows": plan.most_rows,
        "best_batch": None if best is None else _speed(best),
        "trees": [_tree(x) for x in plan.trees()],
        "gains": [{"acceptance": a, "gain": plan.gain(a)} for a in sorted({*GRID, question.acceptance})]
        if question.method != "ar" or question.policy is not None
        else [],
    }


def memory_fields(memory: Memory) -> dict[str, Any]:
    """Returns the bytes of a device by what they are of."""
    derived = {name: getattr(memory, name) for name in ("arguments", "total", "fits")}
    return dataclasses.asdict(memory) | derived


def _parts(parts: Iterable[Part], plan: Plan) -> list[dict[str, Any]]:
    chip = plan.chip
    return [
        {
            "part": part.name,
            "operations": part.operations,
            "bytes": part.bytes,
            "sent": part.sent,
            "intensity": part.intensity,
            "ms": 1e3 * part.seconds(chip),
            "limit": part.limit(chip),
        }
        for part in parts
    ]


def _speed(speed: Speed) -> dict[str, Any]:
    return {
        "batch": speed.batch,
        "tree": speed.tree,
        "step_ms": 1e3 * speed.step,
        "tokens_a_step": speed.tokens,
        "ms_a_token": 1e3 * speed.latency,
        "tokens_a_second": speed.throughput,
        "total_bytes": speed.memory.total,
        "fits": speed.memory.fits,
    }


def _tree(tree: Drafted) -> dict[str, Any]:
    return {
        "tree": tree.tree,
        "nodes": tree.nodes,
        "tokens_a_step": tree.tokens,
        "step_ms": 1e3 * tree.seconds,
        "ms_a_token": 1e3 * tree.seconds_a_token,
    }
