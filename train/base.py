"""Trains a language model from nothing on packed rows, and exports it.

    python -m train.base --config train/configs/tiny.json --packed PACKED --tokenizer TOKENIZER --output RUN

`RUN/model` is then a Hugging Face folder. A run that was cut off goes on with `--resume`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import tyro

from jax_smash.models.transformer import random_params
from train.data import load_packed, ordered_batches, shuffled_batches
from train.export import export_run
from train.loop import Loop, train
from train.objective import language_model_objective
from train.settings import load_settings, remember, with_special_tokens


def main(
    config: Path,
    packed: Path,
    tokenizer: Path,
    output: Path,
    steps: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    devices: int | None = None,
    log_every: int = 10,
    evaluate_every: int = 200,
    save_every: int = 100,
    sources: Path | None = None,
    resume: bool = False,
) -> None:
    """Trains a language model from nothing.

    Args:
      config: JSON file with the model's shape, the optimiser's settings, the batch size and the number of steps.
      packed: folder of packed rows, made with the same tokenizer.
      tokenizer: folder of the tokenizer.
      output: folder for checkpoints, metrics and, in the end, `model`.
      steps: length of the run, in place of the file's.
      batch_size: rows a step, in place of the file's.
      seed: of the first weights and of the order of rows, in place of the file's.
      devices: on a CPU, shares of a batch that are worked on side by side; one a core trains fastest.
      log_every: steps between lines of `metrics.jsonl`.
      evaluate_every: steps between evaluations on the held-out rows.
      save_every: steps between checkpoints.
      sources: Markdown on the text and its licences, for the model card.
      resume: go on from the newest checkpoint in `output`.
    """
    if devices is not None:
        jax.config.update("jax_num_cpu_devices", devices)
    settings = load_settings(config, steps=steps, batch_size=batch_size, seed=seed)
    settings = with_special_tokens(settings, tokenizer)
    loop = Loop(settings.steps, log_every=log_every, evaluate_every=evaluate_every, save_every=save_every)
    optimiser = settings.optimiser.build(settings.steps)
    rows, held_out = (load_packed(packed, tokenizer, split=split) for split in ("train", "held_out"))
    remember(settings, output, resume=resume)

    graphdef, params = random_params(settings.model, settings.seed)
    train(
        language_model_objective(graphdef),
        optimiser,
        params,
        loop=loop,
        batches=lambda step: shuffled_batches(rows, settings.batch_size, seed=settings.seed, start_step=step),
        held_out=lambda: ordered_batches(held_out, settings.batch_size),
        output=output,
        resume=resume,
    )
    print("exported to", export_run(output, packed, tokenizer, output / "model", sources=sources))


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
