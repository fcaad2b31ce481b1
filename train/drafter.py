"""Trains a drafter for a frozen target, and exports it.

    python -m train.drafter --kind eagle --config CONFIG --packed PACKED --base MODEL --output RUN

`--kind` is `eagle` (EAGLE-3), `eagle1`, `medusa`, `chimera`, `dflash` or `micro`. `PACKED` was made by `train.pack`
with the tokenizer of `MODEL`.
`RUN/drafter` holds the drafter in the end. Pass it as `--drafter` to the method of its kind (`eagle` for both EAGLEs),
as in `jax-smash generate --method eagle --drafter RUN/drafter`. It goes with the weights that it was trained for alone.
The drafter is that of the step which drafted most tokens in a row on documents that are kept for this choice.
`RUN/metrics.jsonl` says how often the target's token was among the drafter's likeliest, by depth: `top3_2` is the share
of entries at depth 2 where it was among three. A run that was cut off goes on with `--resume`.

`--kind medusa` with `train/configs/blockwise.json` trains the heads of blockwise parallel decoding (Stern et al. 2018):
eight tokens a step, a layer with a residual before the target's own rows for each later one, all counting alike. Its
layers have SiLU and no second matrix, and `--tree chain-7` decodes with them.

`"base": "lora"` in a training file of `medusa` trains low-rank changes of the target too (Medusa-2,
`train/configs/medusa-2-paper.json`, in two stages; `medusa-2-joint-paper.json`, at once). `RUN/drafter/adapter` then
holds the changes as PEFT saves them, and is given as `--model RUN/drafter/adapter`. The adapted model generates other
text than the target, and the heads go with it alone.

`--kind micro` trains HAMburger's micro-step decoder and stop head, whose groups are drafts and share no slot:
`jax-smash generate --method hamburger --smash-mode exact --modules RUN/drafter` reads them.

`--change NAME=VALUE` takes another value of a field of the training file, as `--change gram=1` does of `chimera` and
`--change optimiser.learning_rate=0.001` of any kind. So one file serves all runs of a comparison.

With `head_size` a drafter proposes only that many tokens, the commonest ones in the replies, and uses the target's
output rows for them; only an EAGLE-3 drafter with `own_head` has rows of its own. Of a large vocabulary that is a
fraction of the work, in training and in each draft; `jax-smash convert` exports such a drafter of EAGLE-3 alone.

`--states STATES` reads from disk what the target makes of the rows (`train.states`), for drafters of any kind.

A drafter learns best from what its target says itself: `train.regenerate` writes that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from jax_smash.cli.lists import Names
from train.parts.drafter.chimera import ChimeraPart
from train.parts.drafter.dflash import DFlashPart
from train.parts.drafter.eagle import EaglePart
from train.parts.drafter.eagle1 import Eagle1Part
from train.parts.drafter.medusa import MedusaPart
from train.parts.drafter.micro import MicroPart
from train.run.flow import run
from train.run.options import RunOptions
from train.run.program import run_program

KINDS: dict[str, Any] = {
    "eagle": EaglePart,
    "eagle1": Eagle1Part,
    "medusa": MedusaPart,
    "chimera": ChimeraPart,
    "dflash": DFlashPart,
    "micro": MicroPart,
}
"""Parts by the kind of drafter."""

FIXED = ("model", "states", "optimiser", "init_sha256")
"""Fields of settings that are no single values of the training file."""


def main(
    kind: str,
    config: Path,
    packed: Path,
    base: str,
    output: Path,
    states: Path | None = None,
    change: Names = (),
    steps: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    **options: Unpack[RunOptions],
) -> None:
    """Trains a drafter.

    Args:
      kind: of drafter: eagle, eagle1, medusa, chimera, dflash or micro.
      config: JSON file with the drafter's sizes, the optimiser's settings, the batch size, the rows' length in tokens
        and the number of steps.
      packed: folder of shards, made by `train.pack` with the target's tokenizer.
      base: the target: a shipped model, a Hugging Face folder or a hub id.
      output: folder for checkpoints, metrics and, in the end, `drafter`.
      states: folder that `train.states` made of `packed` by the same target, whose layers are then not run.
      change: fields in place of the file's, NAME=VALUE each; a list is NAME=[A,B].
      steps: length of the run, in place of the file's.
      batch_size: rows a step, in place of the file's.
      seed: of the first weights and of the order of rows, in place of the file's.
      options: how the run goes.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
    given = {"steps": steps, "batch_size": batch_size, "seed": seed}
    part = KINDS[kind].from_files(config, packed, base, states, **given, **changes_of(change, given))
    print(run(part, output, **options))


def changes_of(words: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields by name, of words NAME=VALUE; a value is JSON, or else a text.

    Args:
      words: of the command line.
      options: fields that have an option of their own.

    Raises:
      ValueError: a word is none, or is of such a field, or two are of one; or a list in brackets is malformed.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals) or name in found or name in FIXED:
            raise ValueError(f"change must be NAME=VALUE, each of a field of the training file, once; got {word!r}")
        if name in options:
            raise ValueError(
                f"change must not be of {name}, which has an option of its own: --{name.replace('_', '-')}"
            )
        try:
            found[name] = json.loads(value)
        except ValueError as error:
            if value.startswith("["):
                raise ValueError(f"change of {name} must be a list in brackets; got {value!r}") from error
            found[name] = value
    return found


if __name__ == "__main__":
    run_program(main)
