"""Greedy tokens of ours and of transformers, compared over random draws.

    python -m eval.parity --draws 1000 --json parity.json

A draw is a batch of random prompts of random lengths for a random small model: a family, a configuration, weights. Both
sides decode it in float32, transformers padded on the left. A token may differ only at a near-tie: where transformers'
own logits of the two tokens lie within 1e-5 of the largest logit's magnitude. Every difference is listed with its gap.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jax_smash
from eval.exact.random_models import FAMILIES, random_fields
from eval.exact.reference import Reference, both
from eval.reports.options import Names
from eval.reports.report import check_output, heading, print_table, progress, run_program, write_json
from jax_smash.loading import Model
from jax_smash.sharding import add_virtual_devices

NEAR_TIE = 1e-5
"""Largest gap between two logits, in units of the row's largest magnitude, that rounding may decide."""

BATCHES = (1, 2, 3, 4, 6)
COUNTED = ("configurations", "draws", "prompts", "tokens", "distinct_tokens", "differences", "beyond_near_ties")
LONGEST_PROMPT = 48
MOST_NEW_TOKENS = 32


@dataclasses.dataclass(frozen=True)
class Settings:
    """Compares greedy tokens with transformers' over random draws.

    Attributes:
      draws: batches of prompts.
      configurations: models among which the draws are divided; each compiles programs of its own.
      families: of models, in turn.
      seed: of everything random.
      mesh: devices to divide our side over, as in fsdp=4,tp=2; a CPU makes as many as it needs.
      json: file to write.
      overwrite: replace the file if it exists.
    """

    draws: int = 1000
    configurations: int = 48
    families: Names = tuple(FAMILIES)
    seed: int = 0
    mesh: str | None = None
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be compared, before anything is made.

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
    """One batch to continue.

    Attributes:
      prompts: tokens, a row.
      max_new_tokens: of each row.
    """

    prompts: list[list[int]]
    max_new_tokens: int


@dataclasses.dataclass(frozen=True)
class Difference:
    """A token of ours that is not what transformers chooses after the same tokens.

    Attributes:
      row: of the batch.
      index: among the row's new tokens.
      ours, theirs: the tokens.
      gap: how far transformers' logit of our token lies below its largest, in units of the largest magnitude.
    """

    row: int
    index: int
    ours: int
    theirs: int
    gap: float

    @property
    def near_tie(self) -> bool:
        """Whether rounding may explain it."""
        return self.gap <= NEAR_TIE


def compare(reference: Reference, draw: Draw, ours: Sequence[Sequence[int]]) -> list[Difference]:
    """Returns where our tokens differ from the reference's.

    Behind a first difference two texts have nothing in common, so the whole row is then held against the reference's
    own choice after each of our tokens.

    Args:
      reference: the other side.
      draw: what was continued.
      ours: our new tokens, a row.

    Raises:
      ValueError: a row has more or fewer tokens than the reference's.
    """
    theirs = reference.generate(draw.prompts, draw.max_new_tokens)
    found = []
    for row, (prompt, mine, other) in enumerate(zip(draw.prompts, ours, theirs, strict=True)):
        if len(mine) != len(other):
            raise ValueError(f"row {row} has {len(mine)} new tokens; the reference has {len(other)}")
        if list(mine) != list(other):
            logits = reference.logits(prompt, mine)
            wrong = [d for d in map(_difference, [row] * len(mine), range(len(mine)), mine, logits) if d.gap > 0]
            # The reference, asked again without padding, may side with us: then the tie was its own.
            found += wrong or [_first_difference(row, mine, other, logits)]
    return found


def _difference(row: int, index: int, token: int, logits: np.ndarray) -> Difference:
    best = int(logits.argmax())
    gap = float(logits[best] - logits[token]) / float(np.abs(logits).max())
    return Difference(row=row, index=index, ours=token, theirs=best, gap=gap)


def _first_difference(row: int, ours: Sequence[int], theirs: Sequence[int], logits: np.ndarray) -> Difference:
    index = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    gap = float(logits[index].max() - logits[index][theirs[index]]) / float(np.abs(logits[index]).max())
    return Difference(row=row, index=index, ours=ours[index], theirs=theirs[index], gap=gap)


def random_draws(rng: np.random.Generator, count: int, vocab_size: int) -> Iterator[Draw]:
    """Yields draws of one batch size and number of new tokens, with prompts of any length.

    Sizes of arrays that programs are compiled for stay few, so that many draws cost few compilations.
    """
    batch = int(rng.choice(BATCHES))
    max_new_tokens = int(rng.integers(16, MOST_NEW_TOKENS + 1))
    for _ in range(count):
        lengths = rng.integers(1, LONGEST_PROMPT + 1, batch)
        yield Draw(prompts=[rng.integers(0, vocab_size, n).tolist() for n in lengths], max_new_tokens=max_new_tokens)


def continue_draw(model: Model, draw: Draw) -> list[list[int]]:
    """Returns our new tokens of each row."""
    completions = jax_smash.generate(
        model,
        draw.prompts,
        max_new_tokens=draw.max_new_tokens,
        batch_size=len(draw.prompts),
        slots=LONGEST_PROMPT + MOST_NEW_TOKENS,
    )
    return [c.token_ids for c in completions]


def measure(settings: Settings) -> dict[str, Any]:
    """Makes all draws and returns the report without its heading.

    Raises:
      ValueError: an option is wrong.
    """
    settings.check()
    add_virtual_devices(settings.mesh)
    configurations = min(settings.configurations, settings.draws)
    counts: dict[str, collections.Counter[str]] = {f: collections.Counter() for f in settings.families}
    listed: list[dict[str, Any]] = []
    with progress("draws", settings.draws) as advance, jax.default_matmul_precision("highest"):
        for number in range(configurations):
            rng = np.random.default_rng((settings.seed, number))
            family = settings.families[number % len(settings.families)]
            fields, count = random_fields(family, rng), counts[family]
            model, reference = both(fields, seed=settings.seed + number, mesh=settings.mesh)
            count.update(configurations=1)
            share = settings.draws // configurations + (number < settings.draws % configurations)
            for draw in random_draws(rng, share, fields["vocab_size"]):
                ours = continue_draw(model, draw)
                found = compare(reference, draw, ours)
                _count(count, ours, found)
                listed += [{"family": family, "configuration": number} | _listed(d) for d in found]
                advance()
    return summary(counts) | {"near_tie": NEAR_TIE, "differences_listed": listed}


def summary(counts: Mapping[str, collections.Counter[str]]) -> dict[str, Any]:
    """Returns totals, and a row a family."""
    totals = sum(counts.values(), collections.Counter())
    rows = [{"family": family} | {name: count[name] for name in COUNTED} for family, count in counts.items()]
    return {name: totals[name] for name in COUNTED} | {"rows": rows}


def _count(count: collections.Counter[str], ours: list[list[int]], found: list[Difference]) -> None:
    count.update(
        draws=1,
        prompts=len(ours),
        tokens=sum(map(len, ours)),
        distinct_tokens=sum(len(set(row)) for row in ours),
        differences=len(found),
        beyond_near_ties=sum(not d.near_tie for d in found),
    )


def _listed(difference: Difference) -> dict[str, Any]:
    return dataclasses.asdict(difference) | {"near_tie": difference.near_tie}


def main(settings: Settings, arguments: Sequence[str] | None = None) -> int:
    """Compares, prints a table, writes the report; returns 1 where a difference is no near-tie."""
    found = measure(settings)
    report = heading("eval.parity", arguments, dataclasses.asdict(settings), "torch") | found
    totals = {"family": "all"} | {name: report[name] for name in COUNTED}
    print_table("Greedy tokens, ours and transformers'", [*report["rows"], totals], ("family", *COUNTED))
    for difference in report["differences_listed"]:
        print(difference)
    if settings.json is not None:
        write_json(settings.json, report)
    return int(report["beyond_near_ties"] > 0)


if __name__ == "__main__":
    run_program(Settings, main)
