"""Rows of a comparison by task: accepted tokens and speed of each contender, beside plain decoding and its chain."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from eval.drafting.task_contest import Batch, Learner, Runs
from eval.scores.intervals import Interval, ratio_bootstrap
from eval.timing.measure import Contender, Sample

ALL = "all"
"""Task of the row of all tasks together."""

Row = dict[str, Any]


def rows_of(
    contenders: Sequence[Contender], runs: Runs, batches: Sequence[Batch], *, batch_size: int, chains: Mapping[str, str]
) -> list[Row]:
    """Returns a row a contender and task, that of all tasks together first.

    Args:
      contenders: the baseline first.
      runs: what `hold` returned.
      batches: that were continued.
      batch_size: rows of a full batch.
      chains: for the name of a contender that drafts a tree, that of the one that drafts the chain of as many nodes.
    """
    names = list(dict.fromkeys(batch.task for batch in batches))
    groups = {ALL: range(len(batches))} if len(names) > 1 else {}
    groups |= {name: [i for i, batch in enumerate(batches) if batch.task == name] for name in names}
    found = []
    for contender in contenders:
        for task, numbers in groups.items():
            mine, plain = (_part(runs[name], numbers) for name in (contender.name, contenders[0].name))
            row = _named(contender) | {"batch_size": batch_size, "task": task} | accepted(mine[0])
            row |= speed(mine, plain) | {"differing": _differing(mine[0], plain[0])}
            if contender.name in chains:
                row |= _beside_chain(mine, _part(runs[chains[contender.name]], numbers))
            found.append(row)
    return found


def accepted(samples: Sequence[Sample]) -> Row:
    """Returns mean accepted tokens of some batches, with the interval over answers."""
    rows = [(len(row) - s.started // len(s.tokens), n) for s in samples for row, n in _rows(s)]
    forwards = sum(s.forwards for s in samples)
    return {
        "answers": len(rows),
        "new_tokens": sum(len(row) for s in samples for row in s.tokens),
        "forwards": forwards,
        "mean_accepted_tokens": sum(s.decoded for s in samples) / forwards,
        "interval": _told(ratio_bootstrap(*zip(*rows, strict=True))),
    }


def speed(mine: Sequence[Sequence[Sample]], plain: Sequence[Sequence[Sample]]) -> Row:
    """Returns the speed of decoding alone, and how it stands to plain decoding's.

    Args:
      mine: a list a repeat, with a sample a batch.
      plain: the baseline's, of the same batches, each run a moment before or after.

    Returns:
      Medians over repeats; the interval of the speed-up is over batches.
    """
    speeds, plains = ([_rate(samples) for samples in repeats] for repeats in (mine, plain))
    # Seconds of each batch for as many tokens as the baseline's.
    ours = [statistics.median(s.decode_s / max(s.decoded, 1) for s in batch) for batch in zip(*mine, strict=True)]
    theirs = [statistics.median(s.decode_s for s in batch) for batch in zip(*plain, strict=True)]
    tokens = [sample.decoded for sample in plain[0]]
    return {
        "tokens_per_second": statistics.median(speeds),
        "plain_tokens_per_second": statistics.median(plains),
        "speedup": statistics.median(a / b for a, b in zip(speeds, plains, strict=True)),
        "speedup_interval": _told(ratio_bootstrap(theirs, [s * n for s, n in zip(ours, tokens, strict=True)])),
        "ms_per_step": statistics.median(
            1e3 * sum(s.decode_s for s in samples) / sum(s.steps for s in samples) for samples in mine
        ),
        "time_to_first_token_ms": 1e3 * statistics.median(s.first_token_s for samples in mine for s in samples),
        "tokens_per_second_by_repeat": speeds,
    }


def below_chains(rows: Sequence[Row]) -> list[str]:
    """Returns a note on each tree that accepts less than the chain of as many nodes."""
    return [
        f"{row['method']} {row['tree']}, batch {row['batch_size']}, {row['task']}: accepts {row['over_chain']:.3f} of "
        f"what the chain of {row['nodes']} does"
        for row in rows
        if row.get("over_chain", 1.0) < 1
    ]


def _named(contender: Contender) -> Row:
    if isinstance(contender, Learner):
        return {"method": contender.method, "tree": contender.tree} | contender.facts()
    facts = contender.facts()
    return {"method": contender.name, "tree": None} | {n: facts[n] for n in ("implementation", "threads") if n in facts}


def _part(repeats: Sequence[Sequence[Sample]], numbers: Sequence[int]) -> list[list[Sample]]:
    return [[samples[i] for i in numbers] for samples in repeats]


def _rows(sample: Sample) -> list[tuple[list[int], int]]:
    return list(zip(sample.tokens, sample.forwards_by_row, strict=True))


def _rate(samples: Sequence[Sample]) -> float:
    return sum(s.decoded for s in samples) / sum(s.decode_s for s in samples)


def _differing(mine: Sequence[Sample], plain: Sequence[Sample]) -> int:
    return sum(a != b for m, p in zip(mine, plain, strict=True) for a, b in zip(m.tokens, p.tokens, strict=True))


def _beside_chain(mine: Sequence[Sequence[Sample]], chain: Sequence[Sequence[Sample]]) -> Row:
    own, theirs = accepted(mine[0]), accepted(chain[0])
    # Texts are the same, so that forwards alone make the ratio.
    forwards = [[n for s in repeats[0] for _, n in _rows(s)] for repeats in (chain, mine)]
    return {
        "chain_mean_accepted_tokens": theirs["mean_accepted_tokens"],
        "over_chain": own["mean_accepted_tokens"] / theirs["mean_accepted_tokens"],
        "over_chain_interval": _told(ratio_bootstrap(*forwards)),
        "speed_over_chain": statistics.median(_rate(a) / _rate(b) for a, b in zip(mine, chain, strict=True)),
    }


def _told(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else dataclasses.asdict(interval)
