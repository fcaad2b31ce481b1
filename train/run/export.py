"""The export of a trained part: its weights as they are stored, and a card that says how they were made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from jax_smash.checkpoints.directory import check_new, new_directory
from jax_smash.checkpoints.huggingface import params_bytes
from jax_smash.hosts import is_first
from train.parts.part import Ended, Part
from train.run.choice import Chosen
from train.run.frozen import Frozen
from train.run.step import Measured, make_evaluation

CARD = "README.md"


def export_part(
    part: Part,
    output: Path,
    trained: Any,
    frozen: Frozen | None,
    mesh: Mesh,
    *,
    chosen: Chosen,
    tokens: int = 0,
    sources: Path | None = None,
) -> Measured:
    """Writes what was trained, with a card that states the held-out losses of the stored weights.

    Weights stay divided over the devices and leave them one tensor at a time. The folder appears whole or not at all.

    Args:
      part: what was trained.
      output: a folder that is absent or empty.
      trained, frozen: the weights, on the mesh.
      mesh: the devices.
      chosen: the step that made the weights.
      tokens: that they were trained on.
      sources: Markdown on the text and its licences.

    Returns:
      What the stored weights were measured to be on all held-out rows.

    Raises:
      FileExistsError: `output` has something in it.
      OSError: the disk is full.
    """
    if is_first():
        check_new(output)
    about = sources.read_text(encoding="utf-8") if sources else ""
    stored = part.stored(trained, frozen)
    evaluate = make_evaluation(part.measured(), mesh)
    found = evaluate(stored, part.held_out(0), None if frozen is None else frozen.params)
    losses = found.loss, found.by_set
    ended = Ended(step=chosen.step, losses=losses, tokens=tokens, sources=about, means=found.means, score=chosen.score)
    with new_directory(output, params_bytes(stored)) as work:
        part.save(work, stored, frozen)
        (work / CARD).write_text(part.card(work, stored, frozen, ended), encoding="utf-8")
    return found
