"""Trains predictors of a base's attention, which stays as it is, and exports them.

    python -m train.butler --config CONFIG --packed PACKED --base BASE --output RUN

`PACKED` was made by `train.pack` with the base's tokenizer. `RUN/butler/NAME` holds each predictor in the end, which
loads beside these weights of the base alone. `RUN/metrics.jsonl` and `RUN/loss.png` say how it went. Of held-out rows
they also say how much of what the base attends to most a predictor would have kept (`NAME recall`), and how much of it
the last entries hold, as many (`NAME recent_recall`). A run that was cut off goes on with `--resume`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from train.parts.butler.part import Butler
from train.run.flow import run
from train.run.options import RunOptions
from train.run.program import run_program


def main(
    config: Path,
    packed: Path,
    base: Path,
    output: Path,
    steps: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    **options: Unpack[RunOptions],
) -> None:
    """Trains predictors of a base's attention.

    Args:
      config: JSON file with the predictors' forms and sizes, the optimiser's settings, the batch size, the rows' length
        and the number of steps.
      packed: folder of shards, made by `train.pack` with the base's tokenizer.
      base: Hugging Face folder of the base.
      output: folder for checkpoints, metrics and, in the end, `butler`.
      steps: length of the run, in place of the file's.
      batch_size: rows a step, in place of the file's.
      seed: of the predictors' first weights and of the order of rows, in place of the file's.
      options: how the run goes.
    """
    part = Butler.from_files(config, packed, base, steps=steps, batch_size=batch_size, seed=seed)
    print(run(part, output, **options))


if __name__ == "__main__":
    run_program(main)
