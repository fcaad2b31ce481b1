"""A trained model as a Hugging Face folder with a model card.

    python -m train.export --run RUN --packed PACKED --tokenizer TOKENIZER --output MODEL

The run may still be going on: its newest checkpoint is taken.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

import jax_smash
from jax_smash.checkpoints.directory import check_new, new_directory
from jax_smash.checkpoints.huggingface import params_bytes, write
from jax_smash.config import ModelConfig
from jax_smash.models.transformer import random_params
from jax_smash.sharding import MeshShape, make_mesh, place
from train.card import model_card
from train.checkpoint import load_newest
from train.data import Packed, held_out_batches
from train.loop import CHECKPOINTS
from train.objective import language_model_objective
from train.program import run_program
from train.settings import FILE, Settings, load_settings
from train.step import TrainState, make_evaluation

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

PROMPTS = (
    "Once upon a time, there was a little girl named",
    "The old king looked out of the window and",
    "Tom and his sister found a big box in the garden. They",
)
SAMPLE_TOKENS = 80
CHATS = ("Hi! I would like to book a table at a restaurant.", "Do you like to read books?")


def export(output: Path, config: ModelConfig, params: nnx.State, tokenizer: Path) -> None:
    """Writes weights, configuration, tokenizer and generation settings; the folder appears whole or not at all.

    Args:
      output: a folder that is absent or empty.
      config: of the model.
      params: its weights, in the dtype that they are stored in.
      tokenizer: folder of the tokenizer, which is copied.

    Raises:
      FileExistsError: `output` has something in it.
      FileNotFoundError: the tokenizer's folder lacks a file.
    """
    check_tokenizer(tokenizer)
    with new_directory(output, params_bytes(params)) as work:
        write_model(work, config, params, tokenizer)


def check_tokenizer(tokenizer: Path) -> None:
    """Raises FileNotFoundError where a tokenizer's folder lacks a file."""
    for name in TOKENIZER_FILES:
        if not (tokenizer / name).is_file():
            raise FileNotFoundError(f"{tokenizer / name} is missing")


def write_model(work: Path, config: ModelConfig, params: nnx.State, tokenizer: Path) -> None:
    """Writes what `export` does into an existing folder."""
    settings = {
        "bos_token_id": config.bos_token,
        "eos_token_id": list(config.eos_tokens),
        "pad_token_id": config.pad_token,
    }
    write(work, config, params)
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, work / name)
    (work / "generation_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def export_run(
    run: Path,
    packed: Path,
    tokenizer: Path,
    output: Path,
    *,
    sources: Path | None = None,
    prompts: tuple[str, ...] = PROMPTS,
    chats: tuple[str, ...] = CHATS,
) -> Path:
    """Writes a run's newest checkpoint, rounded to bfloat16, with a card that says how it was made and what it does.

    Args:
      run: folder of the run.
      packed: folder of packed rows; the held-out ones measure the rounded weights.
      tokenizer: folder of the tokenizer.
      output: a folder that is absent or empty.
      sources: Markdown on the text and its licences.
      prompts: begin the card's greedy samples.
      chats: first turns of its greedy dialogues.

    Returns:
      `output`.

    Raises:
      ValueError: as `newest_state` says.
      FileExistsError: `output` has something in it.
    """
    check_new(output)
    about = sources.read_text(encoding="utf-8") if sources else ""
    settings, rows = load_settings(run / FILE), Packed(packed, tokenizer)
    graphdef, state = newest_state(run, settings)
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), state.params)
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), rounded)
    mesh = make_mesh(MeshShape(data=math.gcd(jax.local_device_count(), settings.batch_size)))
    held_out = held_out_batches(rows, length=settings.length, batch_size=settings.batch_size)
    losses = make_evaluation(language_model_objective(graphdef), mesh)(place(wide, mesh), held_out)
    export(output, settings.model, rounded, tokenizer)
    samples = greedy_samples(output, prompts, chats)
    card = model_card(settings, rows.index, samples, step=int(state.step), losses=losses, sources=about)
    (output / "README.md").write_text(card, encoding="utf-8")
    return output


def newest_state(run: Path, settings: Settings) -> tuple[nnx.GraphDef, TrainState]:
    """Returns the model's structure and the state of a run's newest checkpoint, on the default device.

    Raises:
      ValueError: the run has no checkpoint, or the newest is damaged or of another model.
    """
    graphdef, params = random_params(settings.model, settings.seed)
    like = TrainState(
        params=params,
        optimiser=settings.optimiser.build(settings.steps).init(params),
        step=jnp.zeros((), jnp.int32),
    )
    return graphdef, load_newest(run / CHECKPOINTS, like)[0]


def greedy_samples(model: Path, prompts: tuple[str, ...], chats: tuple[str, ...]) -> list[tuple[str, str]]:
    """Returns each prompt and each first turn of a dialogue with its greedy continuation, in float32.

    What has no room in the model's context is left out.
    """
    loaded = jax_smash.load(model, dtype=jnp.float32)
    room = loaded.config.max_positions - SAMPLE_TOKENS
    turns = {chat: loaded.encode_chat([{"role": "user", "content": chat}]) for chat in chats}
    tokens = {prompt: loaded.encode(prompt) for prompt in prompts} | turns
    asked = {text: ids for text, ids in tokens.items() if len(ids) <= room}
    if not asked:
        return []
    completions = jax_smash.generate(loaded, list(asked.values()), max_new_tokens=SAMPLE_TOKENS)
    return [(text, completion.text) for text, completion in zip(asked, completions, strict=True)]


def main(run: Path, packed: Path, tokenizer: Path, output: Path, sources: Path | None = None) -> None:
    """Exports the newest checkpoint of a run.

    Args:
      run: folder of the run.
      packed: folder of packed rows.
      tokenizer: folder of the tokenizer.
      output: a folder that is absent or empty.
      sources: Markdown on the text and its licences, for the model card.
    """
    print("exported to", export_run(run, packed, tokenizer, output, sources=sources))


if __name__ == "__main__":
    run_program(main)
