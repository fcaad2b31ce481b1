"""Trains a language model from nothing on packed rows, and exports it.

    python -m train.base --config train/configs/tiny.json --packed PACKED --tokenizer TOKENIZER --output RUN

`RUN/model` is then a Hugging Face folder. A run that was cut off goes on with `--resume`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import tokenizers
import tyro
from flax import nnx

from jax_smash.cache import Block
from jax_smash.config import ModelConfig, RopeConfig
from jax_smash.models.transformer import random_params
from jax_smash.objectives import summed_cross_entropy
from train.data import Batch, load_packed, ordered_batches, shuffled_batches
from train.export import export
from train.loop import Loop, Objective, train
from train.optimiser import Optimiser
from train.tokenizer import END, EOS


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decides the weights that a run ends with.

    Attributes:
      model: its shape.
      optimiser: its settings.
      batch_size: rows a step.
      steps: length of the run.
      seed: of the first weights and of the order of rows.
    """

    model: ModelConfig
    optimiser: Optimiser
    batch_size: int
    steps: int
    seed: int = 0


def load_settings(path: Path, **changes: Any) -> Settings:
    """Returns the settings of a JSON file; changes that are not None replace what it says.

    Raises ValueError where the file cannot be read, or a field is missing, unknown or out of range.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        model = dict(fields["model"])
        model |= {name: RopeConfig(**model[name]) for name in ("rope", "rope_sliding") if name in model}
        model["layer_kinds"] = tuple(model.get("layer_kinds", ["full"] * model["num_layers"]))
        names = {field.name for field in dataclasses.fields(Settings)} - {"model", "optimiser"}
        rest = {name: fields[name] for name in names if name in fields}
        rest |= {name: value for name, value in changes.items() if value is not None}
        return Settings(model=ModelConfig(**model), optimiser=Optimiser(**fields.get("optimiser", {})), **rest)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a training file: {error!r}") from error


def with_special_tokens(config: ModelConfig, tokenizer: Path) -> ModelConfig:
    """Returns the configuration with the tokenizer's ids; a document's end and a turn's end both end a text.

    Raises:
      ValueError: the tokenizer has more ids than the model's vocabulary.
    """
    vocabulary = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    if (size := vocabulary.get_vocab_size()) > config.vocab_size:
        raise ValueError(f"vocab_size must be at least the tokenizer's {size}; got {config.vocab_size}")
    names = json.loads((tokenizer / "tokenizer_config.json").read_text(encoding="utf-8"))
    bos, pad = (vocabulary.token_to_id(names[f"{kind}_token"]) for kind in ("bos", "pad"))
    ends = tuple(token for token in map(vocabulary.token_to_id, (EOS, END)) if token is not None)
    return dataclasses.replace(config, bos_token=bos, eos_tokens=ends, pad_token=pad)


def language_model_objective(graphdef: nnx.GraphDef, *, chunk: int = 512) -> Objective:
    """Returns the cross-entropy of the next token, in nats, over packed documents that do not see each other."""

    def objective(params: Any, batch: Batch) -> Any:
        model = nnx.merge(graphdef, params)
        block = Block.causal(batch.segments > 0, batch.segments)
        hidden = model.forward(model.embed(batch.tokens), batch.positions, None, block).hidden
        return summed_cross_entropy(model.unembed, hidden, batch.targets, batch.weights, chunk=chunk)

    return objective


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
      resume: go on from the newest checkpoint in `output`.
    """
    if devices is not None:
        jax.config.update("jax_num_cpu_devices", devices)
    settings = load_settings(config, steps=steps, batch_size=batch_size, seed=seed)
    settings = dataclasses.replace(settings, model=with_special_tokens(settings.model, tokenizer))
    loop = Loop(settings.steps, log_every=log_every, evaluate_every=evaluate_every, save_every=save_every)
    optimiser = settings.optimiser.build(settings.steps)
    rows, held_out = (load_packed(packed, tokenizer, split=split) for split in ("train", "held_out"))
    remember(settings, output, resume=resume)

    graphdef, params = random_params(settings.model, settings.seed)
    state = train(
        language_model_objective(graphdef),
        optimiser,
        params,
        loop=loop,
        batches=lambda step: shuffled_batches(rows, settings.batch_size, seed=settings.seed, start_step=step),
        held_out=lambda: ordered_batches(held_out, settings.batch_size),
        output=output,
        resume=resume,
    )
    export(output / "model", settings.model, state.params, tokenizer)
    print(f"exported to {output / 'model'}")


def remember(settings: Settings, output: Path, *, resume: bool) -> None:
    """Writes `output/settings.json`.

    Raises:
      ValueError: a run in `output` that is to be resumed has other settings.
    """
    path, said = output / "settings.json", dataclasses.asdict(settings)
    if resume and path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        now = json.loads(json.dumps(said))
        if differing := [name for name in now if now[name] != before.get(name)]:
            name = differing[0]
            raise ValueError(f"{output} was begun with {name} {before.get(name)}; got {now[name]}")
    elif (output / "checkpoints").is_dir() and any((output / "checkpoints").iterdir()):
        raise ValueError(f"{output} holds a run; resume it or choose another folder")
    output.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
