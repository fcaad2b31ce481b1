"""Rows of reports, brought into the form that a table asks for."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from eval.exact.kept import NO_DRAFT_KEPT, no_draft_kept
from eval.reports.claims.claim import Rows
from eval.reports.claims.table import Cell, Row

ALL = "all"
PLAIN_IN_TURN = "all, plain in turn"
SUMMED = ("tokens", "divergences", "beyond_near_ties", "unexplained")
AS_IT_IS = "as it is"


def where(rows: Iterable[Row], **fields: Any) -> list[Row]:
    """Returns the rows whose fields have the values; a value that is a tuple stands for any of its own."""
    wanted = {name: value if isinstance(value, tuple) else (value,) for name, value in fields.items()}
    return [row for row in rows if all(row.get(name) in values for name, values in wanted.items())]


def in_order(rows: Iterable[Row], cell: Cell, values: Sequence[str]) -> list[Row]:
    """Returns rows sorted by the place of what a cell writes; what is not named comes last."""
    places = {value: i for i, value in enumerate(values)}
    return sorted(rows, key=lambda row: places.get(cell(row), len(places)))


def with_chains(rows: Iterable[Row]) -> list[Row]:
    """Returns rows but those of plain decoding, and behind a tree's that tells of it the chain of as many nodes.

    A chain that has rows of its own is not told twice.
    """
    rows = [row for row in rows if row["method"] != "ar"]
    own = {(row["method"], row.get("tree")) for row in rows}
    found = []
    for row in rows:
        found.append(row)
        name = f"chain-{row.get('nodes')}"
        if row.get("chain_mean_accepted_tokens") is not None and (row["method"], name) not in own:
            chain = {"tree": name, "mean_accepted_tokens": row["chain_mean_accepted_tokens"]}
            found.append({**row, **chain, "interval": None, "chain_mean_accepted_tokens": None})
    return found


def with_range(rows: Iterable[Row]) -> list[Row]:
    """Returns rows of a speed report with the range of their repeats; None where there are not several."""
    found: list[Row] = []
    for row in rows:
        speeds = row.get("tokens_per_second_by_repeat") or ()
        found.append({**row, "range": {"low": min(speeds), "high": max(speeds)} if len(speeds) > 1 else None})
    return found


def with_plain_in_turn(rows: Iterable[Row]) -> list[Row]:
    """Returns rows of a comparison by task, and behind a method's of all tasks that of its own plain decoding."""
    found: list[Row] = []
    for row in rows:
        found.append(row)
        if row["method"] != "ar" and row.get("task") == ALL and row.get("plain_tokens_per_second") is not None:
            plain = {"task": PLAIN_IN_TURN, "tokens_per_second": row["plain_tokens_per_second"], "range": None}
            found.append({**row, **plain})
    return found


def exactness_totals(rows: Rows) -> list[Row]:
    """Returns sums over the conditions of exactness reports: a row a model, method, what drafts, tree and processors.

    Conditions are told as the batch sizes that occurred. A note says where no draft was kept: that proves nothing.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        if row["method"] == "ar":
            continue
        _, drafted, *_ = row["key"]  # What drafts stands beside the method.
        policy = [row["sparse"]] if row["method"] == "self-sparse" else []
        row = {**row, "method": " ".join([drafted, *policy])}
        key = tuple(row[name] for name in ("model", "dtype", "method", "tree", "processors"))
        empty = dict.fromkeys(("conditions", "unkept", "texts", "equal", "equal_of", "found", "found_of"), 0)
        total = found.setdefault(
            key, {**row, **dict.fromkeys(SUMMED, 0), **empty, "worst_gap": None, "batches": [], "note": None}
        )
        if row["must"] == "differ":
            total["found"], total["found_of"] = total["found"] + bool(row["passed"]), total["found_of"] + 1
        elif row["way"] != AS_IT_IS:
            total["equal"], total["equal_of"] = total["equal"] + bool(row["passed"]), total["equal_of"] + 1
        else:
            total["conditions"] += 1
            total["unkept"] += no_draft_kept(row)
            total["texts"] += row["prompts"] if isinstance(row["prompts"], int) else 0
            total["batches"] = sorted({*total["batches"], row["batch_size"]})
            for name in SUMMED:
                total[name] += row[name]
            gaps = [gap for gap in (total["worst_gap"], row["worst_gap"]) if gap is not None]
            total["worst_gap"] = max(gaps, default=None)
    for total in found.values():
        if total["unkept"]:
            some = f" in {total['unkept']} of {total['conditions']} conditions"
            total["note"] = NO_DRAFT_KEPT + some * (total["unkept"] < total["conditions"])
    return list(found.values())


def paired(rows: Iterable[Row], by: Callable[[Row], str]) -> list[Row]:
    """Returns a row for each set of examples: the baseline's, with each other contender's row under its name.

    Args:
      rows: of reports of quality.
      by: names the contender of a row.

    Raises:
      ValueError: two rows of the same examples have one contender.
    """
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        detail = {k: v for k, v in row["settings"].items() if k in ("length", "file", "shots")}
        key = (row["report"], row["task"], row["metric"], str(detail))
        if row["difference"] is None:
            found.setdefault(key, {}).update(row)
            continue
        others, name = found.setdefault(key, {}), by(row)
        if name in others:
            raise ValueError(f"a contender must have one row of the same examples; {name} has two of {row['task']}")
        others[name] = row
    return [row for row in found.values() if "score" in row]
