"""A trained model as a Hugging Face folder with a model card.

    python -m train.export --run RUN --packed PACKED --tokenizer TOKENIZER --output MODEL

The run may still be going on: its newest checkpoint is taken.
"""

from __future__ import annotations

import math
from pathlib import Path

import jax
from flax import nnx
from jax.sharding import Mesh

from jax_smash.checkpoints.directory import check_new
from jax_smash.models.transformer import abstract_params
from jax_smash.sharding import MeshShape, make_mesh, param_shardings
from train.data.rows import Packed
from train.parts.language_model.model_folder import TOKENIZER_FILES, check_tokenizer
from train.parts.language_model.part import LanguageModel
from train.run.checkpoint import load_newest
from train.run.choice import Chosen
from train.run.export import export_part
from train.run.loop import CHECKPOINTS
from train.run.program import check_sources, run_program
from train.run.settings import FILE, Settings, load_settings, remembered_rows
from train.run.step import TrainState, first_state


def export_run(run: Path, packed: Path, tokenizer: Path, output: Path, *, sources: Path | None = None) -> Path:
    """Writes a run's newest checkpoint, rounded to bfloat16, with a card that says how it was made and what it does.

    Args:
      run: folder of the run.
      packed: folder of packed rows; the held-out ones measure the rounded weights.
      tokenizer: folder of the tokenizer.
      output: a folder that is absent or empty.
      sources: Markdown on the text and its licences.

    Returns:
      `output`.

    Raises:
      ValueError: as `newest_state` says, `sources` is not UTF-8 text, or `packed` holds other rows than the run's.
      FileExistsError: `output` has something in it.
      FileNotFoundError: the tokenizer's folder lacks a file, or `sources` is not there.
    """
    check_new(output)
    check_sources(sources)
    check_tokenizer(tokenizer, TOKENIZER_FILES)
    settings = load_settings(run / FILE)
    part = LanguageModel(settings, Packed(packed, tokenizer), tokenizer)
    if remembered_rows(run) not in (None, part.data_sha256):
        raise ValueError(f"{packed} must hold the rows that the run in {run} was trained on; it holds others")
    mesh = _mesh(settings)
    state = newest_state(run, settings, mesh)[1]
    export_part(part, output, state.params, None, mesh, chosen=Chosen(int(state.step)), sources=sources)
    return output


def _mesh(settings: Settings) -> Mesh:
    """Returns devices that weights and rows are divided over, or rows alone where weights do not divide."""
    devices = math.gcd(jax.local_device_count(), settings.batch_size)
    mesh = make_mesh(MeshShape(fsdp=devices))
    try:
        param_shardings(abstract_params(settings.model)[1], mesh)
    except ValueError:
        return make_mesh(MeshShape(data=devices))
    return mesh


def newest_state(run: Path, settings: Settings, mesh: Mesh | None = None) -> tuple[nnx.GraphDef, TrainState]:
    """Returns the model's structure and the state of a run's newest checkpoint.

    Args:
      run: folder of the run.
      settings: of the run.
      mesh: the devices; None for the default one alone.

    Raises:
      ValueError: the run has no checkpoint, or the newest is damaged or of another model.
    """
    graphdef, params = abstract_params(settings.model)
    optimiser = settings.optimiser.build(settings.steps)
    state = jax.eval_shape(lambda p: first_state(p, optimiser), params)
    shardings = param_shardings(state, make_mesh("data=1") if mesh is None else mesh)
    like = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings)
    return graphdef, load_newest(run / CHECKPOINTS, like)[0]


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
