"""Trained modules as a folder: beside the base where the run changed it, alone where it did not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jax_smash.checkpoints.directory import new_directory
from jax_smash.checkpoints.fingerprint import fingerprint
from jax_smash.checkpoints.huggingface import params_bytes
from jax_smash.checkpoints.smasher import save_smasher
from jax_smash.sharding import MeshShape, make_mesh, place
from train.export import write_model
from train.hamburger_card import hamburger_card
from train.slot_pieces import Segmented
from train.slot_rows import held_out_slot_batches
from train.smash_objective import smash_objective
from train.smash_settings import SmashSettings
from train.smash_start import base_params
from train.step import make_evaluation


def export_hamburger(
    output: Path,
    settings: SmashSettings,
    graphdefs: tuple[nnx.GraphDef, nnx.GraphDef],
    params: dict[str, Any],
    segmented: Segmented,
    tokenizer: Path,
    *,
    step: int,
    tokens: int,
    sources: str = "",
) -> Path:
    """Writes trained weights, rounded to bfloat16, with a card; the folder appears whole or not at all.

    Args:
      output: a folder that is absent or empty.
      settings: of the run.
      graphdefs: structures of base and modules.
      params: by role, as trained.
      segmented: what it was trained on; the held-out rows measure the rounded weights.
      tokenizer: folder of the tokenizer, which goes with a base that was changed.
      step: steps that made the weights.
      tokens: that they were trained on.
      sources: Markdown on the text and its licences.

    Returns:
      `output`.

    Raises:
      FileExistsError: `output` has something in it.
    """
    # What was divided among devices comes together.
    whole = jax.tree.map(lambda x: jnp.asarray(jax.device_get(x)), params)
    changed = settings.base != "frozen"
    base = base_params(settings, whole)
    base = _rounded(base) if changed else base
    smasher = _rounded(whole["smasher"])
    losses = _losses(settings, graphdefs, base, smasher, segmented)
    of_base = fingerprint(settings.model, base)
    card = hamburger_card(
        settings,
        segmented.segmentation,
        step=step,
        tokens=tokens,
        losses=losses,
        base_fingerprint=of_base,
        sources=sources,
    )
    counts = segmented.reply_counts(settings.model.vocab_size, settings.room)
    with new_directory(output, params_bytes(smasher) + params_bytes(base) * changed) as work:
        if changed:
            write_model(work, settings.model, base, tokenizer)
        save_smasher(work, settings.smash, smasher, token_counts=counts, base_fingerprint=of_base)
        (work / "README.md").write_text(card, encoding="utf-8")
    return output


def _losses(
    settings: SmashSettings,
    graphdefs: tuple[nnx.GraphDef, nnx.GraphDef],
    base: nnx.State,
    smasher: nnx.State,
    segmented: Segmented,
) -> tuple[float, dict[str, float]]:
    """Returns the held-out losses of the stored weights, without what the training added to keep near the old base."""
    measured = settings.measured()
    mesh = make_mesh(MeshShape(data=math.gcd(jax.local_device_count(), settings.batch_size)))
    held_out = held_out_slot_batches(
        segmented, room=settings.room, micro_steps=settings.micro_steps, batch_size=settings.batch_size
    )
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), {"base": base, "smasher": smasher})
    return make_evaluation(smash_objective(*graphdefs, measured), mesh)(place(wide, mesh), held_out)


def _rounded(params: nnx.State) -> nnx.State:
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
