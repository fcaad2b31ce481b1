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
            row = _named(contender) | {"batch_size": batch_size, "task": task} | accepted(mine)
            row |= speed(mine, plain) | {"differing": _differing(mine, plain)}
            if contender.name in chains:
                row |= _beside_chain(mine, _part(runs[chains[contender.name]], numbers))
            found.append(row)
    return found


def accepted(repeats: Sequence[Sequence[Sample]]) -> Row:
    """Returns mean accepted tokens of some batches, with the interval over answers.

    An automatic tree need not be the same in every repeat: tokens and forwards are sums over repeats, those of one
    answer too, which is drawn with all of its repeats. `answers` are counted once.
    """
    samples, answers = [s for repeat in repeats for s in repeat], _answers(repeats)
    forwards = sum(s.forwards for s in samples)
    return {
        "answers": len(answers),
        "new_tokens": sum(len(row) for s in samples for row in s.tokens),
        "forwards": forwards,
        "mean_accepted_tokens": sum(s.decoded for s in samples) / forwards,
        "interval": _told(ratio_bootstrap(*zip(*answers, strict=True))),
    }


def speed(mine: Sequence[Sequence[Sample]], plain: Sequence[Sequence[Sample]]) -> Row:
    """Returns the speed of decoding alone, and how it stands to plain decoding's.

    Args:
      mine: a list a repeat, with a sample a batch.
      plain: the baseline's, of the same batches, each run a moment before or after.

    Returns:
      Medians over repeats, but for the speed-up: see `_seconds`. Its interval draws batches again.
    """
    speeds, plains = ([_rate(samples) for samples in repeats] for repeats in (mine, plain))
    theirs, ours = _seconds(plain, mine)
    return {
        "tokens_per_second": statistics.median(speeds),
        "plain_tokens_per_second": statistics.median(plains),
        "speedup": sum(theirs) / sum(ours),
        "speedup_interval": _told(ratio_bootstrap(theirs, ours)),
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


def _answers(repeats: Sequence[Sequence[Sample]]) -> list[tuple[int, int]]:
    """Returns the tokens that decoding emitted of each answer, and its forwards, both sums over repeats."""
    found = []
    for batch in zip(*repeats, strict=True):
        rows = zip(*(zip(s.tokens, s.forwards_by_row, strict=True) for s in batch), strict=True)
        started = sum(s.started // len(s.tokens) for s in batch)
        found += [(sum(len(tokens) for tokens, _ in row) - started, sum(n for _, n in row)) for row in rows]
    return found


def _rate(samples: Sequence[Sample]) -> float:
    return sum(s.decoded for s in samples) / sum(s.decode_s for s in samples)


def _seconds(theirs: Sequence[Sequence[Sample]], ours: Sequence[Sequence[Sample]]) -> tuple[list[float], list[float]]:
    """Returns the seconds of each batch for as many tokens as theirs has: medians over repeats of seconds a token.

    How many times as fast ours is, is the ratio of the sums of both: what an interval over batches draws again.
    """
    tokens = [sum(s.decoded for s in batch) / len(batch) for batch in zip(*theirs, strict=True)]
    both = (
        [statistics.median(s.decode_s / max(s.decoded, 1) for s in batch) for batch in zip(*repeats, strict=True)]
        for repeats in (theirs, ours)
    )
    first, second = ([n * s for n, s in zip(tokens, seconds, strict=True)] for seconds in both)
    return first, second


def _differing(mine: Sequence[Sequence[Sample]], plain: Sequence[Sequence[Sample]]) -> int:
    """Returns how many answers are not plain decoding's of the same repeat, in one repeat or more."""
    odd = {
        (number, row)
        for samples, others in zip(mine, plain, strict=True)
        for number, (m, p) in enumerate(zip(samples, others, strict=True))
        for row, (a, b) in enumerate(zip(m.tokens, p.tokens, strict=True))
        if a != b
    }
    return len(odd)


def _beside_chain(mine: Sequence[Sequence[Sample]], chain: Sequence[Sequence[Sample]]) -> Row:
    own, theirs = accepted(mine), accepted(chain)
    # Texts are the same, so that forwards alone make the ratio.
    forwards = [[n for _, n in _answers(repeats)] for repeats in (chain, mine)]
    slower, faster = _seconds(chain, mine)
    return {
        "chain_mean_accepted_tokens": theirs["mean_accepted_tokens"],
        "over_chain": own["mean_accepted_tokens"] / theirs["mean_accepted_tokens"],
        "over_chain_interval": _told(ratio_bootstrap(*forwards)),
        "speed_over_chain": sum(slower) / sum(faster),
    }


def _told(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else dataclasses.asdict(interval)
