"""A row's text depends on its prompt, options and seed alone: checked over random draws.

    python -m eval.invariance --draws 200 --json invariance.json

A draw is a batch of random prompts, each row with sampling options and a seed of its own, on a random small model. It
is decoded together, then in other ways: each row alone, with 1 or 3 steps a call of the loop, streamed, and in the
reverse order. All must give the same tokens. torch is not needed.
"""

import dataclasses
import json as json_format
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_smash
from eval.exact.random_models import FAMILIES, SPREAD, random_fields
from eval.reports.options import Names
from eval.reports.report import check_output, heading, print_table, progress, run_program, write_json
from jax_smash.loading import Model
from jax_smash.sampling import SamplingOptions

ROWS = 4
LONGEST_PROMPT = 24
NEW_TOKENS = 24
INITIAL_SPREAD = 0.02
"""Standard deviation of the library's own random weights, which greedy text would only repeat itself from."""

OPTIONS = (
    SamplingOptions(),
    SamplingOptions(temperature=1.0),
    SamplingOptions(temperature=0.7, top_k=20, top_p=0.9, min_p=0.02),
    SamplingOptions(temperature=1.3, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3),
)
"""Of the rows of a batch: greedy, plain sampling, truncations, penalties."""

Rows = list[list[int]]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Checks that a row's tokens do not depend on how it is decoded.

    Attributes:
      draws: batches of prompts.
      configurations: models among which the draws are divided; each compiles programs of its own.
      families: of models, in turn.
      seed: of everything random.
      json: file to write.
      overwrite: replace the file if it exists.
    """

    draws: int = 200
    configurations: int = 6
    families: Names = tuple(FAMILIES)
    seed: int = 0
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be checked, before anything is made.

        Raises:
          ValueError: an option is out of range.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        for name in ("draws", "configurations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        for family in self.families or ("",):
            if family not in FAMILIES:
                raise ValueError(f"family must be one of {', '.join(FAMILIES)}; got {family!r}")
        check_output(self.json, overwrite=self.overwrite)


@dataclasses.dataclass(frozen=True)
class Draw:
    """One batch: prompts as tokens, options and a seed a row."""

    prompts: Rows
    options: tuple[SamplingOptions, ...]
    seeds: tuple[int, ...]

    def rows(self, index: Sequence[int]) -> "Draw":
        """Returns the draw of some of its rows."""
        return Draw(
            prompts=[self.prompts[i] for i in index],
            options=tuple(self.options[i] for i in index),
            seeds=tuple(self.seeds[i] for i in index),
        )


def continued(model: Model, draw: Draw, **options: Any) -> Rows:
    """Returns the new tokens of each row, decoded together."""
    completions = jax_smash.generate(
        model,
        draw.prompts,
        max_new_tokens=NEW_TOKENS,
        sampling=draw.options,
        seed=draw.seeds,
        batch_size=len(draw.prompts),
        slots=LONGEST_PROMPT + NEW_TOKENS,
        **options,
    )
    return [c.token_ids for c in completions]


def _alone(model: Model, draw: Draw) -> Rows:
    return [continued(model, draw.rows([i]))[0] for i in range(len(draw.prompts))]


def _reversed(model: Model, draw: Draw) -> Rows:
    return continued(model, draw.rows(range(len(draw.prompts))[::-1]))[::-1]


WAYS: dict[str, Callable[[Model, Draw], Rows]] = {
    "alone": _alone,
    "reversed": _reversed,
    "1 step a call": lambda model, draw: continued(model, draw, steps=1),
    "3 steps a call": lambda model, draw: continued(model, draw, steps=3),
    "64 steps a call": lambda model, draw: continued(model, draw, steps=64),
    "streamed": lambda model, draw: continued(model, draw, on_text=lambda number, text: None),
}
"""Ways to decode a draw that must all give what `continued` gives."""


def differences(expected: Rows, found: Rows) -> list[dict[str, int]]:
    """Returns where each row of tokens first differs from what is expected."""
    listed = []
    for row, (a, b) in enumerate(zip(expected, found, strict=True)):
        if a != b:
            index = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            listed.append({"row": row, "index": index})
    return listed


def random_tiny(fields: Mapping[str, Any], *, seed: int) -> Model:
    """Makes a model with random weights spread widely enough for varied text."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json_format.dumps(dict(fields)))
        model = jax_smash.random_model(folder, dtype=jnp.float32, seed=seed)
    wider = jnp.float32(SPREAD / INITIAL_SPREAD)
    return dataclasses.replace(model, params=jax.tree.map(lambda w: w * wider if w.ndim > 1 else w, model.params))


def random_draw(rng: np.random.Generator, vocab_size: int) -> Draw:
    """Returns a draw in which every kind of options occurs."""
    lengths = rng.integers(1, LONGEST_PROMPT + 1, ROWS)
    return Draw(
        prompts=[rng.integers(0, vocab_size, n).tolist() for n in lengths],
        options=tuple(OPTIONS[i % len(OPTIONS)] for i in range(ROWS)),
        seeds=tuple(int(s) for s in rng.integers(0, 2**31, ROWS)),
    )


def measure(settings: Settings) -> dict[str, Any]:
    """Makes all draws and returns the report without its heading.

    Raises:
      ValueError: an option is wrong.
    """
    settings.check()
    configurations = min(settings.configurations, settings.draws)
    rows: dict[str, dict[str, Any]] = {way: {"way": way, "prompts": 0, "tokens": 0, "differences": 0} for way in WAYS}
    listed = []
    with progress("draws", settings.draws) as advance, jax.default_matmul_precision("highest"):
        for number in range(configurations):
            rng = np.random.default_rng((settings.seed, number))
            family = settings.families[number % len(settings.families)]
            fields = random_fields(family, rng)
            model = random_tiny(fields, seed=settings.seed + number)
            for _ in range(settings.draws // configurations + (number < settings.draws % configurations)):
                draw = random_draw(rng, fields["vocab_size"])
                expected = continued(model, draw)
                for way, decode in WAYS.items():
                    found = differences(expected, decode(model, draw))
                    counts = {"prompts": ROWS, "tokens": sum(map(len, expected)), "differences": len(found)}
                    rows[way] |= {name: rows[way][name] + count for name, count in counts.items()}
                    listed += [{"way": way, "family": family, "configuration": number} | d for d in found]
                advance()
    return {"rows": list(rows.values()), "differences_listed": listed}


def main(settings: Settings, arguments: Sequence[str] | None = None) -> int:
    """Checks, prints a table, writes the report; returns 1 where anything differs."""
    report = heading("eval.invariance", arguments, dataclasses.asdict(settings)) | measure(settings)
    print_table("Rows that differ from the same rows decoded together", report["rows"], tuple(report["rows"][0]))
    for difference in report["differences_listed"]:
        print(difference)
    if settings.json is not None:
        write_json(settings.json, report)
    return int(bool(report["differences_listed"]))


if __name__ == "__main__":
    run_program(Settings, main)
