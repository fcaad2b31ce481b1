"""Trains a language model on packed shards, and exports it.

    python -m train.base --config train/configs/tiny.json --packed PACKED --tokenizer TOKENIZER --output RUN

`RUN/model` is then a Hugging Face folder, `RUN/metrics.jsonl` and `RUN/loss.png` say how it went. A run that was cut
off goes on with `--resume`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from train.parts.language_model.part import LanguageModel
from train.run.flow import run
from train.run.options import RunOptions
from train.run.program import run_program


def main(
    config: Path,
    packed: Path,
    tokenizer: Path,
    output: Path,
    init_from: Path | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    **options: Unpack[RunOptions],
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
      batch_size: rows a step, in place of the file's.
      seed: of the first weights and of the order of rows, in place of the file's.
      options: how the run goes.
    """
    changes = {"steps": steps, "batch_size": batch_size, "seed": seed}
    print(run(LanguageModel.from_files(config, packed, tokenizer, init_from, **changes), output, **options))


if __name__ == "__main__":
    run_program(main)
