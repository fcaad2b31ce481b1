"""A run of any part: from its checks to its export."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Unpack

from jax_smash.hosts import agree, decided, is_first
from jax_smash.sharding import param_shardings
from train.parts.part import Part
from train.run.batches import Share
from train.run.checkpoint import newest_step
from train.run.choice import Chosen, chosen_params, chosen_step
from train.run.export import export_part
from train.run.loop import CHECKPOINTS, METRICS, train
from train.run.metrics import Metrics
from train.run.options import RunOptions, RunPlan
from train.run.settings import check_remembered, remember
from train.run.shared_folder import check_shared
from train.run.step import check_rows
from train.run.utilisation import peak_flops


def run(part: Part, output: Path, **options: Unpack[RunOptions]) -> str:
    """Trains a part, or what is left of its run, and exports it at its end; returns what is to be told of it.

    Frozen weights are on the devices once, in the dtype of their files. What is trained is there once, in the state
    that steps replace: a run that goes on reads no first weights, and one that begins keeps none.

    Args:
      part: what is trained.
      output: folder of the run.
      options: as in `RunOptions`.

    Raises:
      ValueError, OSError: something does not fit, cannot be read or is there already, which is told before anything is
        written; or as `train.run.loop.train` says.
    """
    plan = RunPlan(**options)
    plan.begin()
    described = {f"setting {name}": value for name, value in dataclasses.asdict(part.settings).items()}
    agree(described | plan.shared() | {"--output": output, "the data's hash": part.data_sha256})
    loop, optimiser = plan.loop(part), part.optimiser()
    rows = part.rows(plan.held_out_rows, Share.of_this_process())
    if rows.choice is None and not any(map(bool, rows.held_out.values())):
        raise ValueError("there must be held-out rows to evaluate on; got none: pack with a larger held_out")
    mesh, shapes = plan.mesh_or_default(part.settings.model), part.shapes()
    check_rows(part.settings.batch_size, mesh, accumulate=part.settings.accumulate)
    param_shardings(shapes, mesh)
    if is_first():
        check_remembered(part.settings, output, resume=plan.resume, packed=part.data_sha256)
    check_shared(output)
    plan.begin_programs(output)
    if loop.token_flops:  # Of a CPU the peak is measured, which takes a second.
        loop = dataclasses.replace(loop, peak_flops=peak_flops(part.settings.dtype))
    goes_on = decided(lambda: newest_step(output / CHECKPOINTS)) is not None
    # What first weights are measured on is gone again before the frozen weights are read.
    first = shapes.trained if goes_on else part.begin(mesh)
    frozen = part.frozen(mesh)
    if is_first():
        remember(part.settings, output, resume=plan.resume, packed=part.data_sha256)
    state = train(
        part.objective(),
        optimiser,
        first,
        loop=loop,
        batches=rows.batches,
        held_out=lambda: rows.held_out,
        output=output,
        frozen=frozen,
        resume=plan.resume,
        mesh=mesh,
        before_step=rows.refresh,
        tokens_of=part.tokens_of,
        evaluated=part.evaluated(),
        choice=rows.choice,
    )
    told = [] if rows.tokens is None else [f"trained on {rows.tokens():,} tokens"]
    folder = output / part.name
    if loop.end < loop.steps:
        told += [f"stopped after step {loop.end} of {loop.steps}; --resume goes on{part.hint}"]
    elif decided(folder.exists):
        told += [f"exported before to {folder}"]
    else:
        params, chosen = state.params, Chosen(int(state.step))
        del state  # What the optimiser held is free for the export.
        if rows.choice is not None:
            params, chosen = chosen_params(output, params), chosen_step(output) or chosen
            told += [f"step {chosen.step} of {loop.steps} chosen by its score {chosen.score:.4f}"]
        tokens = 0 if rows.tokens is None else rows.tokens()
        found = export_part(part, folder, params, frozen, mesh, chosen=chosen, tokens=tokens, sources=plan.sources)
        if rows.choice is not None:
            Metrics(output / METRICS, loop.end).measured(chosen.step, "held_out", found)
        told += [f"exported to {folder}"]
    return "\n".join(told)
