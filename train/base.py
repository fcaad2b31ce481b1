"""Trains a language model on packed shards, and exports it.

    python -m train.base --config train/configs/tiny.json --packed PACKED --tokenizer TOKENIZER --output RUN

`RUN/model` is then a Hugging Face folder, `RUN/metrics.jsonl` and `RUN/loss.png` say how it went. A run that was cut
off goes on with `--resume`.
"""

from __future__ import annotations

from pathlib import Path

import jax

from jax_smash.models.transformer import abstract_params
from jax_smash.sharding import MeshShape, make_mesh, param_shardings
from train.data import Batch, Packed, held_out_batches, training_batches
from train.export import export_run
from train.loop import Batches, Loop, train
from train.objective import language_model_objective
from train.own_texts import own_texts
from train.program import check_sources, make_devices, run_program
from train.settings import Settings, load_settings, remember, with_special_tokens
from train.start import first_params, loaded_params
from train.step import check_rows
from train.utilisation import peak_flops, token_flops

MODEL = "model"


def main(
    config: Path,
    packed: Path,
    tokenizer: Path,
    output: Path,
    init_from: Path | None = None,
    steps: int | None = None,
    until: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    mesh: str | None = None,
    devices: int | None = None,
    log_every: int = 10,
    evaluate_every: int = 200,
    save_every: int = 100,
    held_out_rows: int = 8,
    sources: Path | None = None,
    resume: bool = False,
) -> None:
    """Trains a language model.

    Args:
      config: JSON file with the model's shape, the optimiser's settings, the batch size, the rows' length and the
        number of steps.
      packed: folder of shards, made by `train.pack` with the same tokenizer.
      tokenizer: folder of the tokenizer.
      output: folder for checkpoints, metrics and, in the end, `model`.
      init_from: Hugging Face folder of weights to begin with, in place of random ones; `model` may then be absent from
        the file.
      steps: length of the run, in place of the file's.
      until: step to stop after, with the learning rate that the whole run has there.
      batch_size: rows a step, in place of the file's.
      seed: of the first weights and of the order of rows, in place of the file's.
      mesh: devices, as in `fsdp=4,tp=2`; by default each works on a share of the rows. A CPU makes as many as it needs.
      devices: on a CPU, how many virtual devices it makes; one a core trains fastest.
      log_every: steps between lines of `metrics.jsonl`.
      evaluate_every: steps between evaluations on the held-out rows.
      save_every: steps between checkpoints.
      held_out_rows: rows of each source that an evaluation reads at most; 0 for all.
      sources: Markdown on the text and its licences, for the model card.
      resume: go on from the newest checkpoint in `output`.
    """
    make_devices(devices, mesh)
    check_sources(sources)
    began = loaded_params(init_from) if init_from else None
    settings = load_settings(
        config,
        steps=steps,
        batch_size=batch_size,
        seed=seed,
        model=began.config if began else None,
        init_sha256=began.sha256 if began else None,
    )
    settings = with_special_tokens(settings, tokenizer)
    optimiser = settings.optimiser.build(settings.steps)
    rows = Packed(packed, tokenizer)
    batches, held_out = _batches(settings, rows, held_out_rows)
    loop = Loop(
        settings.steps,
        log_every=log_every,
        evaluate_every=evaluate_every,
        save_every=save_every,
        accumulate=settings.accumulate,
        until=until,
        token_flops=token_flops(settings.model, settings.length),
        peak_flops=peak_flops(settings.dtype),
    )
    where = make_mesh(mesh or MeshShape(data=jax.device_count()))
    # What does not divide is told before anything is written.
    check_rows(settings.batch_size, where, accumulate=settings.accumulate)
    param_shardings(abstract_params(settings.model)[1], where)
    _check_resumable(settings, loop)
    remember(settings, output, resume=resume, packed=rows.index["sources_sha256"])

    if began:
        graphdef, params = began.graphdef, began.params
    else:
        graphdef, params = first_params(settings.model, settings.seed, recall=settings.recall)
    refresh = None
    if settings.own_rows:
        batches = own = own_texts(settings, batches, rows, graphdef)
        refresh = own.refresh
    objective = language_model_objective(graphdef, dtype=settings.dtype, remat=settings.remat, scan=settings.scan)
    train(
        objective,
        optimiser,
        params,
        loop=loop,
        batches=batches,
        held_out=lambda: held_out,
        output=output,
        resume=resume,
        mesh=where,
        before_step=refresh,
    )
    print(_ended(loop, output, packed, tokenizer, sources))


def _ended(loop: Loop, output: Path, packed: Path, tokenizer: Path, sources: Path | None) -> str:
    """Exports a run that is at its end; returns what is said of it."""
    if loop.end < loop.steps:
        return f"stopped after step {loop.end} of {loop.steps}; --resume goes on, train.export exports what there is"
    if (output / MODEL).exists():
        return f"exported before to {output / MODEL}"
    return f"exported to {export_run(output, packed, tokenizer, output / MODEL, sources=sources)}"


def _check_resumable(settings: Settings, loop: Loop) -> None:
    """Refuses a run whose checkpoints lie between two times that own texts are written."""
    if settings.own_rows and (loop.save_every % settings.own_every or loop.end % settings.own_every):
        raise ValueError(
            f"own_every must divide the steps between checkpoints and the last step, for a run to resume to the same "
            f"weights; got {settings.own_every}, {loop.save_every} and {loop.end}"
        )


def _batches(settings: Settings, packed: Packed, held_out_rows: int) -> tuple[Batches, dict[str, list[Batch]]]:
    """Returns what this host trains on, and the held-out rows of each source."""
    batches = training_batches(
        packed,
        length=settings.length,
        batch_size=settings.batch_size // jax.process_count(),
        seed=settings.seed,
        answer_weight=settings.answer_weight,
        circle_weight=settings.circle_weight,
        host=jax.process_index(),
        hosts=jax.process_count(),
    )
    held_out = held_out_batches(packed, length=settings.length, batch_size=settings.batch_size, rows=held_out_rows)
    return batches, held_out


if __name__ == "__main__":
    run_program(main)
