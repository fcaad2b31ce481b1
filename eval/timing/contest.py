"""Contenders run in turn, and a row of figures for each."""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from eval.reports.report import progress
from eval.timing.measure import Contender, Sample

Runs = Mapping[str, list[list[Sample]]]
"""By contender: a list a repeat, with a sample a batch."""


def take_turns(
    contenders: Sequence[Contender], batches: Sequence[list[list[int]]], *, repeats: int, settle_seconds: float
) -> Runs:
    """Runs every contender in turn on each batch, `repeats` times over.

    So a machine that slows down slows all of them alike.

    Args:
      contenders: warmed up.
      batches: prompts, as tokens.
      repeats: of everything.
      settle_seconds: pause before each run, in which the other framework's idle threads stop spinning.
    """
    runs: dict[str, list[list[Sample]]] = {c.name: [[] for _ in range(repeats)] for c in contenders}
    with progress("measuring", repeats * len(batches) * len(contenders)) as advance:
        for repeat in range(repeats):
            for batch in batches:
                for contender in contenders:
                    time.sleep(settle_seconds)
                    runs[contender.name][repeat].append(contender.run(batch))
                    advance()
    return runs


def rows(
    contenders: Sequence[Contender], runs: Runs, *, batch_size: int, bytes_per_second: float
) -> list[dict[str, Any]]:
    """Returns a row of figures of each contender.

    Args:
      contenders: ours, then peers. The first is the baseline of every speed-up.
      runs: what `take_turns` returned.
      batch_size: rows a batch.
      bytes_per_second: how fast the device can read.
    """
    baseline, facts = contenders[0].name, {c.name: c.facts() for c in contenders}
    speeds = {name: [_speed(samples) for samples in repeats] for name, repeats in runs.items()}
    peers = [c.name for c in contenders if c.is_peer]
    found = []
    for contender in contenders:
        name, samples = contender.name, [s for repeat in runs[contender.name] for s in repeat]
        ms_per_step = statistics.median(
            1e3 * sum(s.decode_s for s in repeat) / sum(s.steps for s in repeat) for repeat in runs[name]
        )
        # A peer reads the same weights; its cache is counted as the baseline's.
        own = {"bytes_per_step": facts[baseline]["bytes_per_step"]} | facts[name]
        row = {
            "method": name,
            "batch_size": batch_size,
            "tokens_per_second": statistics.median(speeds[name]),
            "ms_per_step": ms_per_step,
            "mean_accepted_tokens": sum(s.decoded for s in samples) / sum(s.forwards for s in samples),
            "speedup": _ratio(speeds[name], speeds[baseline]),
            "time_to_first_token_ms": 1e3 * statistics.median(s.first_token_s for s in samples),
            **own,
            "roofline_fraction": own["bytes_per_step"] / (ms_per_step / 1e3) / bytes_per_second,
            "tokens_per_second_by_repeat": speeds[name],
        }
        if contender.is_peer:
            row |= {"ours_over_peer": _ratio(speeds[baseline], speeds[name])}
            row |= _agreement(runs[baseline][-1], runs[name][-1])
        else:
            row["ours_over_peer"] = _ratio(speeds[name], speeds[peers[0]]) if peers else None
        found.append(row)
    return found


def _agreement(ours: Sequence[Sample], theirs: Sequence[Sample]) -> dict[str, int]:
    pairs = [pair for a, b in zip(ours, theirs, strict=True) for pair in zip(a.tokens, b.tokens, strict=True)]
    return {"prompts_compared": len(pairs), "prompts_differing": sum(a != b for a, b in pairs)}


def _speed(samples: Sequence[Sample]) -> float:
    return sum(s.decoded for s in samples) / sum(s.decode_s for s in samples)


def _ratio(speeds: Sequence[float], others: Sequence[float]) -> float:
    """Returns the median of the repeats' ratios: both sides of each ran side by side."""
    return statistics.median(a / b for a, b in zip(speeds, others, strict=True))
