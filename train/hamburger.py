"""Trains the modules that let a base hold several tokens in one cache slot, and exports them.

    python -m train.hamburger --config CONFIG --segmented SEGMENTED --init-from BASE --output RUN

`SEGMENTED` was made by `train.segment` with the same base. `RUN/hamburger` holds the modules in the end and, where the
base was trained or learned low-rank changes, the base too, as a Hugging Face folder. `RUN/metrics.jsonl` and
`RUN/loss.png` say how it went. A run that was cut off goes on with `--resume`.

A base that was fine-tuned on as many tokens is the one to compare with. A segmented folder is a packed one still:

    python -m train.base --config BASE_CONFIG --packed SEGMENTED --tokenizer BASE --init-from BASE --output BASELINE

A step there takes `batch_size` rows of `length` tokens, a few per cent of them padding; the tokens that were trained on
here are told at the end, and divided by their product give the steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
from flax import nnx

from jax_smash.checkpoints.huggingface import resolve
from jax_smash.checkpoints.smasher import WEIGHTS
from jax_smash.sharding import MeshShape, make_mesh, param_shardings
from train.export import check_tokenizer
from train.hamburger_export import export_hamburger
from train.loop import Loop, train
from train.pack import file_sha256
from train.program import check_sources, make_devices, run_program
from train.settings import load_kind, remember
from train.slot_pieces import Segmented
from train.slot_rows import CountedBatches, SlotBatch, held_out_slot_batches, slot_batches, tokens_of
from train.smash_objective import smash_objective
from train.smash_settings import SmashSettings
from train.smash_start import first_smash_params
from train.start import Loaded, loaded_params
from train.step import TrainState, check_rows

HAMBURGER = "hamburger"


def main(
    config: Path,
    segmented: Path,
    init_from: Path,
    output: Path,
    modules: Path | None = None,
    teacher: Path | None = None,
    tokenizer: Path | None = None,
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
    """Trains the modules that are grafted on a base.

    Args:
      config: JSON file with the modules' sizes, the optimiser's settings, the batch size, the rows' length in slots and
        the number of steps.
      segmented: folder of shards, made by `train.segment` with the same base.
      init_from: Hugging Face folder of the base.
      output: folder for checkpoints, metrics and, in the end, `hamburger`.
      modules: folder of trained modules to begin with, of the file's sizes; by default they begin at random.
      teacher: Hugging Face folder of a base of the same shape, such as one that was fine-tuned on the same text: where
        `kl_weight` in the file is above 0, predictions are drawn to its own. By default the base that the run begins
        with.
      tokenizer: folder of the tokenizer; by default the base's.
      steps: length of the run, in place of the file's.
      until: step to stop after, with the learning rate that the whole run has there.
      batch_size: rows a step, in place of the file's.
      seed: of the modules' first weights and of the order of rows, in place of the file's.
      mesh: devices, as in `fsdp=4,tp=2`; by default each works on a share of the rows. A CPU makes as many as it needs.
      devices: on a CPU, how many virtual devices it makes; one a core trains fastest.
      log_every: steps between lines of `metrics.jsonl`.
      evaluate_every: steps between evaluations on the held-out rows.
      save_every: steps between checkpoints.
      held_out_rows: rows of each source that an evaluation reads at most; 0 for all.
      sources: Markdown on the text and its licences, for the card.
      resume: go on from the newest checkpoint in `output`.
    """
    make_devices(devices, mesh)
    check_sources(sources)
    init_from = resolve(init_from)
    tokenizer = _tokenizer(init_from, tokenizer)
    rows = Segmented(segmented, tokenizer)
    began = loaded_params(init_from)
    taught_by = _teacher(teacher, began, tokenizer) if teacher else None
    changes = {"steps": steps, "batch_size": batch_size, "seed": seed}
    settings = _settings(config, began, tokenizer, modules, taught_by, changes)
    rows.check(settings.model, settings.smash)
    optimiser = settings.transformation()
    batches, held_out = _batches(settings, rows, held_out_rows)
    loop = Loop(
        settings.steps,
        log_every=log_every,
        evaluate_every=evaluate_every,
        save_every=save_every,
        accumulate=settings.accumulate,
        until=until,
    )
    where = make_mesh(mesh or MeshShape(data=jax.device_count()))
    # What does not divide is told before anything is written.
    check_rows(settings.batch_size, where, accumulate=settings.accumulate)
    smasher, params = first_smash_params(settings, began.params, modules, taught_by.params if taught_by else None)
    param_shardings(params, where)
    remember(settings, output, resume=resume, packed=rows.sha256)
    graphdefs = (began.graphdef, smasher)
    state = train(
        smash_objective(*graphdefs, settings),
        optimiser,
        params,
        loop=loop,
        batches=batches,
        held_out=lambda: held_out,
        output=output,
        resume=resume,
        mesh=where,
        tokens_of=tokens_of,
    )
    print(f"trained on {batches.tokens:,} tokens")
    if loop.end < loop.steps:
        print(f"stopped after step {loop.end} of {loop.steps}; --resume goes on")
    else:
        print(_exported(output, settings, graphdefs, state, rows, tokenizer, tokens=batches.tokens, sources=sources))


def _tokenizer(init_from: Path, tokenizer: Path | None) -> Path:
    """Returns the folder of the tokenizer: the base's, or another with the same one.

    Raises:
      FileNotFoundError, ValueError: it is missing or damaged, or is not the base's.
    """
    tokenizer = tokenizer or init_from
    check_tokenizer(tokenizer)
    own = init_from / "tokenizer.json"
    if own.is_file() and file_sha256(own) != file_sha256(tokenizer / "tokenizer.json"):
        raise ValueError(f"tokenizer must be that of {init_from}: modules are loaded for it alone; got {tokenizer}")
    return tokenizer


def _teacher(folder: Path, began: Loaded, tokenizer: Path) -> Loaded:
    """Returns the teacher: a base of the same shape, with the same tokenizer.

    Raises:
      FileNotFoundError, ValueError: it is missing or damaged, or of another shape or tokenizer.
    """
    folder = resolve(folder)
    check_tokenizer(folder)
    if file_sha256(folder / "tokenizer.json") != file_sha256(tokenizer / "tokenizer.json"):
        raise ValueError(f"the teacher must have the base's tokenizer; {folder} has another")
    found = loaded_params(folder)
    if found.config != began.config:
        raise ValueError(f"the teacher must have the base's shape; {folder} has another")
    return found


def _settings(
    config: Path,
    began: Loaded,
    tokenizer: Path,
    modules: Path | None,
    taught_by: Loaded | None,
    changes: dict[str, Any],
) -> SmashSettings:
    return load_kind(
        SmashSettings,
        config,
        model=began.config,
        init_sha256=began.sha256,
        tokenizer_sha256=file_sha256(tokenizer / "tokenizer.json"),
        modules_sha256=file_sha256(modules / WEIGHTS) if modules else "",
        teacher_sha256=taught_by.sha256 if taught_by else "",
        **changes,
    )


def _batches(
    settings: SmashSettings, segmented: Segmented, held_out_rows: int
) -> tuple[CountedBatches, dict[str, list[SlotBatch]]]:
    """Returns what this host trains on, and the held-out rows of each source."""
    batches = slot_batches(
        segmented,
        room=settings.room,
        micro_steps=settings.micro_steps,
        batch_size=settings.batch_size // jax.process_count(),
        seed=settings.seed,
        answer_weight=settings.answer_weight,
        cut_share=settings.cut_share,
        unfused_share=settings.unfused_share,
        singles=settings.beyond_weight > 0,
        host=jax.process_index(),
        hosts=jax.process_count(),
    )
    held_out = held_out_slot_batches(
        segmented,
        room=settings.room,
        micro_steps=settings.micro_steps,
        batch_size=settings.batch_size,
        rows=held_out_rows,
    )
    return batches, held_out


def _exported(
    output: Path,
    settings: SmashSettings,
    graphdefs: tuple[nnx.GraphDef, nnx.GraphDef],
    state: TrainState,
    segmented: Segmented,
    tokenizer: Path,
    *,
    tokens: int,
    sources: Path | None,
) -> str:
    """Exports a run that is at its end; returns what is said of it."""
    if (folder := output / HAMBURGER).exists():
        return f"exported before to {folder}"
    step, about = int(state.step), sources.read_text(encoding="utf-8") if sources else ""
    export_hamburger(
        folder, settings, graphdefs, state.params, segmented, tokenizer, step=step, tokens=tokens, sources=about
    )
    return f"exported to {folder}"


if __name__ == "__main__":
    run_program(main)
