"""The training files that have a paper's settings: sizes, rates and their schedules."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from jax_smash.models.families.presets import preset
from train.parts.drafter.medusa_settings import MedusaSettings
from train.parts.drafter.settings import ChimeraSettings, DFlashSettings, Eagle1Settings, EagleSettings
from train.run.settings import load_kind

CHANGES = {"base": "lora", "rank": 32, "alpha": 16, "base_rate": 0.25, "base_weight": 1.0}
"""Of a target that learns, as Medusa-2 has them."""


COSINE, LINEAR = ((1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2), (0.75, 0.5, 0.25)


@dataclasses.dataclass(frozen=True)
class Paper:
    """What a training file says.

    Attributes:
      kind: of its settings.
      peak: of the learning rate.
      warmup, steps: until the peak, and in all.
      row: tokens of a row, and rows of a step.
      fields: others of the settings.
      clip: how gradients are cut, by a field of the optimiser.
      decay: weight decay.
      betas: decay of the two moments.
      falls: the shares of the peak a quarter, half and three quarters of the way from it to the end.
    """

    kind: type
    peak: float
    warmup: int
    steps: int
    row: tuple[int, int]
    fields: dict[str, Any]
    clip: tuple[str, float] = ("clip", 1.0)
    decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    falls: tuple[float, float, float] = COSINE


PAPERS = {
    "eagle-paper": Paper(
        EagleSettings,
        5e-5,
        12_000,
        800_000,
        (2048, 16),
        {"head_size": 32_000, "test_steps": 7},
        ("clip", 0.5),
        falls=LINEAR,
    ),
    "eagle-1-paper": Paper(
        Eagle1Settings,
        3e-5,
        2000,
        800_000,
        (2048, 16),
        {"feature_share": 1.0, "prediction_share": 0.1, "noise": 0.2, "test_steps": 1, "join_bias": True},
        ("clip_value", 0.5),
        0.01,
        falls=LINEAR,
    ),
    "medusa-paper": Paper(
        MedusaSettings,
        2e-3,
        40,
        4000,
        (2048, 32),
        {"num_heads": 5, "blocks": 1, "head_decay": 0.8, "base": "frozen"},
        betas=(0.9, 0.999),
    ),
    "medusa-2-paper": Paper(
        MedusaSettings,
        2e-3,
        40,
        8000,
        (2048, 32),
        CHANGES | {"num_heads": 5, "heads_alone": 4000, "heads_weight": 0.16, "heads_ramp": 0, "base_labels": "text"},
    ),
    "medusa-2-joint-paper": Paper(
        MedusaSettings,
        4e-4,
        40,
        8000,
        (2048, 32),
        CHANGES
        | {"num_heads": 5, "heads_alone": 0, "heads_weight": 0.008, "heads_ramp": 8000, "base_labels": "target"},
    ),
    "blockwise": Paper(
        MedusaSettings, 5e-4, 40, 4000, (2048, 32), {"num_heads": 7, "blocks": 1, "own_head": False, "head_decay": 1.0}
    ),
    "chimera-paper": Paper(
        ChimeraSettings,
        2e-4,
        44,
        4400,
        (1024, 32),
        {"decoding_heads": 4, "gram": 3, "labels": "text"},
        betas=(0.9, 0.999),
    ),
    "dflash-paper": Paper(
        DFlashSettings,
        6e-4,
        1000,
        25_000,
        (3072, 32),
        {"num_layers": 5, "block_size": 16, "anchors": 512, "decay_places": 7.0, "labels": "text"},
    ),
}


@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_training_file_has_its_rates_and_its_schedule(name, request):
    paper, file = PAPERS[name], request.config.rootpath / f"train/configs/{name}.json"
    found = load_kind(paper.kind, file, model=preset("llama-3.1-8b"))
    assert {field: getattr(found, field) for field in paper.fields} == paper.fields
    assert (found.length, found.batch_size, found.steps) == (*paper.row, paper.steps)
    assert (getattr(found.optimiser, paper.clip[0]), found.optimiser.weight_decay) == (paper.clip[1], paper.decay)
    assert bool(found.optimiser.clip_value) == (paper.clip[0] == "clip_value")
    assert (found.optimiser.name, found.optimiser.b1, found.optimiser.b2) == ("adamw", *paper.betas)
    rate = found.optimiser.schedule(found.steps)
    steps = [0, paper.warmup // 2, *np.linspace(paper.warmup, paper.steps, 5)]
    shares = np.array([0, 0.5, 1, *paper.falls, 0])
    np.testing.assert_allclose([rate(step) for step in steps], paper.peak * shares, atol=1e-9)


def test_every_papers_training_file_of_a_drafter_is_one_of_these(request):
    files = {file.stem for file in (request.config.rootpath / "train/configs").glob("*-paper.json")}
    assert files - {"hamburger-paper"} == {*PAPERS} - {"blockwise"}
