"""The model's own greedy texts among the rows that it is trained on, so that it unlearns to go in circles.

Source: Welleck et al. 2020, Neural Text Generation with Unlikelihood Training, section 5.2: sequences. Differs: texts
are written every few steps, not at each, and stand beside rows of data in every batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import jax_smash
from jax_smash.config import ModelConfig
from jax_smash.hosts import decided, joined
from jax_smash.loading import Model
from jax_smash.models.definition import NnxModel
from jax_smash.sharding import on_host
from train.data.rows import Batch, Packed, Pieces
from train.run.batches import Batches
from train.run.settings import Settings

RUN = 4
"""Tokens that are said again where a text goes in circles."""

FEWEST, MOST = 4, 40
"""Tokens of a text that the model goes on from."""

NEW = 128
"""Tokens that it goes on for, at most."""

SLOTS = 256
"""Cache slots of a text: the same for all, so that nothing is compiled twice."""


@dataclasses.dataclass
class OwnTexts:
    """Batches whose last rows hold what the model wrote, by the weights of the step that `refresh` last saw.

    Of these rows only the tokens that complete a run of four said before are trained on, by how unlikely they are.

    Attributes:
      batches: of data, whole ones.
      definition: of the model.
      config: its sizes and stop tokens.
      openings: what texts begin with, a set a source.
      rows: own rows a batch.
      every: steps between two times that texts are written.
      length: T, targets a row; room for one text at least.
      weight: what a repeated token counts.
      seed: of the choice of beginnings.
    """

    batches: Batches
    definition: Any
    config: ModelConfig
    openings: Sequence[Pieces]
    rows: int
    every: int
    length: int
    weight: float
    seed: int

    def __post_init__(self) -> None:
        if self.length < MOST + NEW:
            raise ValueError(f"own texts need rows of at least {MOST + NEW} tokens; got {self.length}")
        if not self.openings:
            raise ValueError("own texts need packed texts to go on from; there are tasks alone")
        self._written: list[Batch] = []

    def refresh(self, params: Any, step: int) -> None:
        """Writes texts by these weights, if it is time, on the first of several hosts; `step` counts the steps made."""
        if step % self.every:
            return
        each = self.length // (MOST + NEW)
        begun = self._begun(np.random.default_rng((self.seed, step)), self.rows * self.every * each)
        params = on_host(params) if joined() else params
        texts = decided(lambda: self._continued(begun, params))
        rows = [
            self._row(texts[i : i + each], [len(start) for start in begun[i : i + each]])
            for i in range(0, len(texts), each)
        ]
        self._written = [
            Batch(*(np.stack(column) for column in zip(*rows[i : i + self.rows], strict=True)))
            for i in range(0, len(rows), self.rows)
        ]

    def _continued(self, begun: list[list[int]], params: Any) -> list[list[int]]:
        """Returns texts with what the model goes on with."""
        model = Model(
            name="own",
            definition=self.definition,
            params={"target": jax.device_put(params, jax.local_devices()[0])},
            config=self.config,
            stop_tokens=self.config.eos_tokens,
        )
        made = jax_smash.generate(model, begun, max_new_tokens=NEW, batch_size=len(begun), slots=SLOTS)
        return [[*start, *text.token_ids] for start, text in zip(begun, made, strict=True)]

    def __next__(self) -> Batch:
        """Returns the next batch of data, its last rows replaced."""
        own = self._written.pop(0)
        return Batch(*(np.concatenate([x[: -self.rows], y]) for x, y in zip(next(self.batches), own, strict=True)))

    def get_state(self) -> dict[str, Any]:
        """Returns where the data stand; own texts are written anew."""
        return self.batches.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to where the data stood."""
        self.batches.set_state(state)

    def _begun(self, rng: np.random.Generator, count: int) -> list[list[int]]:
        begun = []
        for _ in range(count):
            pieces = self.openings[int(rng.integers(len(self.openings)))]
            tokens = pieces[int(rng.integers(len(pieces)))].tokens
            begun.append(tokens[: rng.integers(FEWEST, MOST + 1)].astype(np.int32).tolist())
        return begun

    def _row(self, texts: Sequence[Sequence[int]], begun: Sequence[int]) -> Batch:
        row = Batch(*(np.zeros(self.length, dtype) for dtype in (np.int32,) * 4 + (np.float32,)))
        end = 0
        for number, (text, start) in enumerate(zip(texts, begun, strict=True), start=1):
            place = slice(end, end := end + len(text) - 1)
            row.tokens[place], row.targets[place] = text[:-1], text[1:]
            row.positions[place], row.segments[place] = np.arange(len(text) - 1), number
            row.weights[place] = -self.weight * np.array(repeats(text, start)[1:], np.float32)
        return row


def repeats(text: Sequence[int], start: int) -> list[bool]:
    """Marks the tokens, from place `start` on, that complete a run of four tokens that was said before."""
    seen: set[tuple[int, ...]] = set()
    marks = [False] * len(text)
    for end in range(RUN, len(text) + 1):
        run = tuple(text[end - RUN : end])
        marks[end - 1] = run in seen and end > start
        seen.add(run)
    return marks


def own_texts(settings: Settings, batches: Batches, packed: Packed, graphdef: Any) -> OwnTexts:
    """Returns batches with own texts, begun like the packed texts; tasks and what is to be unlearned are left out.

    Args:
      settings: of the run.
      batches: of data, whole ones.
      packed: the shards that they are drawn from.
      graphdef: of the model.

    Raises:
      ValueError: there is no text to begin with, or rows are too short.
    """
    plain = {source["name"] for source in packed.index["sources"] if not source.get("task")}
    pieces = packed.pieces("train", settings.length)
    openings = [found for name, found in pieces.items() if name in plain and not found[0].marks.any()]
    return OwnTexts(
        batches=batches,
        definition=NnxModel(graphdef),
        config=settings.model,
        openings=openings,
        rows=settings.own_rows,
        every=settings.own_every,
        length=settings.length,
        weight=settings.circle_weight,
        seed=settings.seed,
    )
