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
from typing import Unpack

from train.parts.hamburger.part import Hamburger
from train.run.flow import run
from train.run.options import RunOptions
from train.run.program import run_program


def main(
    config: Path,
    segmented: Path,
    init_from: Path,
    output: Path,
    modules: Path | None = None,
    teacher: Path | None = None,
    tokenizer: Path | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    **options: Unpack[RunOptions],
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
      batch_size: rows a step, in place of the file's.
      seed: of the modules' first weights and of the order of rows, in place of the file's.
      options: how the run goes.
    """
    part = Hamburger.from_files(
        config,
        segmented,
        init_from,
        modules=modules,
        teacher=teacher,
        tokenizer=tokenizer,
        steps=steps,
        batch_size=batch_size,
        seed=seed,
    )
    print(run(part, output, **options))


if __name__ == "__main__":
    run_program(main)
