"""What a table of each program's reports looks like."""

from eval.reports.claims import cells
from eval.reports.claims.claim import Rows
from eval.reports.claims.rows import (
    exactness_totals,
    in_order,
    paired,
    where,
    with_chains,
    with_plain_in_turn,
    with_range,
)
from eval.reports.claims.table import (
    NOTHING,
    Cell,
    Row,
    Table,
    count,
    crossed,
    figure,
    listed,
    number,
    text,
    with_interval,
)

BY_TREE = {"Method": cells.method, "Tree": cells.tree}

MEAN = "mean"
"""Names the mean of all tasks."""

NOT_MET = "not met"
"""Stands in place of a score where a policy reads more than its budget, whatever it chooses."""


def accepted_by_task(rows: Rows) -> Table:
    """A line a method and tree, a column a task."""
    return crossed(with_chains(_greedy(rows)), BY_TREE, cells.category, cells.by_category("mean_accepted_tokens"))


def accepted_by_tree(rows: Rows) -> Table:
    """A line a method, way of verifying and number of answers, a column a tree; all kinds of questions together."""
    whole = [row for row in rows if row.get("tree") and cells.category(row) == cells.ALL]
    down = {"Method": cells.method, "Verification": cells.verification, "Answers": count("answers")}
    return crossed(whole, down, cells.tree, cells.by_category("mean_accepted_tokens"))


def kept_by_depth(rows: Rows) -> Table:
    """A line a method of chains, a column a depth; all kinds of questions together, greedy.

    Without hybrids, whose drafts branch whatever the tree: several may be tried at a depth, of which one is kept.
    """
    found = []
    for row in _greedy(rows):
        if row["method"].startswith("hybrid"):
            continue
        if cells.category(row) == cells.ALL and str(row.get("tree")).startswith("chain-"):
            found += [
                {**row, "depth": d, "kept": x} for d, x in enumerate(row["acceptance_by_depth"], 1) if x is not None
            ]
    return crossed(found, BY_TREE, lambda row: f"depth {row['depth']}", cells.percent("kept"))


def accuracies(rows: Rows) -> Table:
    """A line a drafter and depth: how often the target's token is among so many."""
    ranks = sorted({int(name[3:]) for row in rows for name in row if name.startswith("top") and name[3:].isdigit()})
    columns = {"Drafter": text("drafter"), "Depth": count("depth"), "Tokens": count("tokens")}
    return listed(rows, columns | {f"Top {n}": cells.percent(f"top{n}", f"top{n}_interval") for n in ranks})


def speed_by_task(rows: Rows) -> Table:
    """A line a method and tree, a column a task; behind that of all tasks, plain decoding that took turns with each."""
    cell = cells.by_category("tokens_per_second", "range")
    return crossed(with_plain_in_turn(with_range(_greedy(rows))), BY_TREE, cells.category, cell)


def speedup_by_task(rows: Rows) -> Table:
    """A line a method and tree, a column a task."""
    others = [row for row in _greedy(rows) if row["method"] != "ar"]
    return crossed(others, BY_TREE, cells.category, cells.by_category("speedup", "speedup_interval"))


def published(rows: Rows) -> Table:
    """A line an algorithm, a column a task."""
    cell = cells.by_category("mean_accepted_tokens")
    return crossed(_greedy(rows), {"Algorithm": cells.method}, cells.category, cell)


def speed(rows: Rows) -> Table:
    """A line a method."""
    columns = {
        "Method": cells.method,
        "Tree": cells.tree,
        "Batch": count("batch_size"),
        "Tokens/s (range of the repeats)": with_interval("tokens_per_second", interval="range"),
        "To plain": cells.ratio("speedup"),
        "To transformers": cells.ratio("ours_over_peer"),
        "Accepted": number("mean_accepted_tokens"),
        "Share of read bandwidth": cells.percent("roofline_fraction"),
    }
    return listed(with_range(rows), columns, words=2)


def exactness(rows: Rows) -> Table:
    """A line a method, tree and processors."""
    columns = {
        "Method": cells.method,
        "Tree": text("tree", {"off": "none"}),
        "Batch": cells.joined("batches"),
        "Processors": text("processors"),
        "Texts": count("texts"),
        "Tokens": count("tokens"),
        "Diverging texts": count("divergences"),
        "Beyond near-ties": count("beyond_near_ties"),
        "Unexplained tokens": count("unexplained"),
        "Variants equal": cells.fraction("equal", "equal_of"),
        "Faults found": cells.fraction("found", "found_of"),
        "Note": text("note"),
    }
    return listed(exactness_totals(rows), columns, words=2)


def weights(rows: Rows) -> Table:
    """A line a task and metric: plain weights, int8, the difference."""
    columns = {
        "Task": cells.task,
        "n": count("n"),
        "float32": cells.score,
        "int8": cells.of("int8", cells.score),
        "Difference": cells.of("int8", cells.difference),
    }
    return listed(paired(rows, lambda row: row["settings"]["weights"]), columns)


def fused_by_task(rows: Rows) -> Table:
    """A line a task: plain decoding, HAMburger, the difference, tokens a slot."""
    columns = {
        "Task": cells.task,
        "n": count("n"),
        "Plain decoding": cells.score,
        "HAMburger": cells.of("hamburger", cells.score),
        "Difference": cells.of("hamburger", cells.difference),
        "Tokens a slot": cells.of("hamburger", number("output_compression")),
        "The cache's tokens a slot": cells.of("hamburger", number("cache_compression")),
    }
    return listed(paired(rows, lambda row: row["method"]), columns)


def fused_curve(rows: Rows) -> Table:
    """A line a task and setting."""
    columns = {
        "Task": cells.task,
        "Method": cells.method,
        "Confidence": number("confidence"),
        "Token confidence": number("token_confidence"),
        "n": count("n"),
        "Score": cells.score,
        "Difference": cells.difference,
        "Tokens a slot": number("output_compression"),
    }
    return listed(own_settings(rows), columns, words=2)


def own_settings(rows: Rows) -> Rows:
    """Returns rows without those options of HAMburger that another method did not take."""
    taken = ("confidence", "token_confidence", "modules", "smash_mode")
    return [{k: v for k, v in row.items() if k not in taken or k in row["settings"]} for row in rows]


def drift(rows: Rows) -> Table:
    """A line a mode."""
    columns = {
        "Mode": text("mode", {"ar": "plain"}),
        "Confidence": number("confidence"),
        "Texts": count("texts"),
        "Tokens": count("tokens"),
        "Wrong tokens": lambda row: cells.shares(row, "error", "low", "high"),
        "Growth from first to last": lambda row: cells.shares(row, "growth", "growth_low", "growth_high"),
        "Tokens a slot": number("output_compression"),
    }
    return listed([{**row, "confidence": row.get("confidence")} for row in rows], columns)


def caps(rows: Rows) -> Table:
    """A line a shape, number of layers and head."""
    lengths = sorted({int(name[4:]) for row in rows for name in row if name.startswith("cap_")} - {1})
    columns = {
        "Shape": text("shape"),
        "Micro-step layers": count("micro_layers"),
        "Head": text("micro_head"),
        "Micro-step, of a forward": cells.percent("micro_step_cost"),
    }
    return listed(rows, columns | {f"{n} tokens": cells.ratio(f"cap_{n}") for n in lengths})


def kernels(rows: Rows) -> Table:
    """A line a shape and implementation."""
    columns = {
        "Kernel": text("program"),
        "Shape": text("shape"),
        "Implementation": text("method"),
        "ms (range of the repeats)": lambda row: (
            f"{figure(row['ms'])} ({figure(min(row['ms_by_repeat']))} to {figure(max(row['ms_by_repeat']))})"
        ),
        "To XLA": cells.ratio("speedup"),
        "GB/s": number("gigabytes_per_second"),
    }
    return listed(rows, columns, words=3)


def by_policy(rows: Rows) -> Table:
    """A line a policy of the cache and budget, those that read most first, then by name, and a column a task.

    A budget that a policy cannot meet has no figure, and is said not to be met.
    """
    return _by_policy(rows, cells.task, cells.score)


def by_policy_on_ruler(rows: Rows) -> Table:
    """The same of RULER's tasks, whose scores are shares; of several tasks their mean comes first."""
    several = len({row["task"] for row in rows}) > 1
    return _by_policy([*(means_by_policy(rows) if several else ()), *rows], cells.ruler_task, cells.share)


def means_by_policy(rows: Rows) -> list[Row]:
    """Returns a row for each policy and budget with a score of every task, which has their mean, and no interval."""
    tasks = {row["task"] for row in rows}
    found: dict[tuple[str, float], dict[str, Row]] = {}
    for row in rows:
        if row["unmet"] is None:
            found.setdefault((row["policy"], row["budget"]), {})[row["task"]] = row
    return [
        {**one[min(tasks)], "task": MEAN, "score": sum(row["score"] for row in one.values()) / len(tasks)}
        | {"interval": None}
        for one in found.values()
        if one.keys() == tasks
    ]


def _by_policy(rows: Rows, task: Cell, score: Cell) -> Table:
    shown, dense = [], dict[tuple[str, str], Row]()
    for row in sorted(rows, key=lambda row: (-row["budget"], row["policy"])):
        if row["unmet"] is not None:
            # It says nothing of the task's metrics, of which each has a column.
            named = {name: row[name] for name in ("policy", "budget", "unmet")}
            shown += [{**every, **named} for every in dense.values() if every["task"] == row["task"]]
        elif row["policy"] != "dense":
            shown.append(row)
        elif (says := (task(row), score(row))) not in dense:
            # Every report begins with it. Where two differ they are two figures, which are refused.
            dense[says] = row
            shown.append(row)
    down = {"Policy": text("policy"), "Of the cache's bytes": lambda row: f"{100 * row['budget']:g}%"}
    return crossed(shown, down, task, lambda row: score(row) if row["unmet"] is None else NOT_MET)


def by_ruler_task(rows: Rows) -> Table:
    """A line a task of RULER, by dense decoding."""
    return listed(where(rows, policy="dense"), {"Task": cells.ruler_task, "Found": cells.share})


def by_recall(rows: Rows) -> Table:
    """A line a policy of the cache: what it reads, recall by query head and by group, and the last entries' recall."""
    columns = {
        "kept": "Entries that it reads",
        "recall": "A query head",
        "group_recall": "A group of heads",
        "recent_recall": "The last entries, as many, a query head",
    }
    met = [row for row in rows if row["unmet"] is None]
    found = [row for row in met if row["metric"] == "recall"]

    def beside(name: str) -> list[Row]:
        return [{**row, "metric": name, "score": row.get(name), "interval": None} for row in found]

    every = [*beside("kept"), *met, *beside("recent_recall")]
    down = {"Policy": text("policy"), "Slots": lambda row: f"{row['slots']:,} of {row['length']:,}"}
    return crossed(every, down, lambda row: columns[row["metric"]], cells.share)


def parity(rows: Rows) -> Table:
    """A line a checkpoint."""
    columns = {
        "Model": text("model"),
        "Prompts": count("prompts"),
        "Greedy tokens": count("tokens"),
        "Other tokens": count("differences"),
        "Beyond near-ties": count("beyond_near_ties"),
        "Largest difference of logits, of the largest logit": lambda row: f"{row['logit_error']:.1e}",
    }
    return listed(rows, columns)


def startup(rows: Rows) -> Table:
    """A line a start."""
    columns = {
        "Start": text("way"),
        "n": count("n"),
        "Seconds to the first text (range)": with_interval("seconds", interval="range"),
    }
    return listed(rows, columns)


def greedy_trees(rows: Rows) -> Rows:
    """Returns what a picture of trained drafters shows: greedy answers to all kinds of questions.

    Small trees come first, and methods by name.
    """
    shown = [row for row in _greedy(rows) if row.get("tree") and cells.category(row) == cells.ALL]
    return sorted(shown, key=lambda row: (row["nodes"], row["tree"], cells.method(row)))


def trees_of(rows: Rows) -> Rows:
    """Returns what a picture by task shows: trees and peers, but neither plain decoding nor chains."""
    drafting = [row for row in _greedy(rows) if row["method"] != "ar"]
    return [row for row in drafting if not str(row.get("tree")).startswith("chain-")] or drafting


def speeds_of(rows: Rows) -> Rows:
    """Returns what a picture of speed by task shows: all but the chains, where there are trees."""
    ranged = with_range(_greedy(rows))
    return [row for row in ranged if not str(row.get("tree")).startswith("chain-")] or ranged


def _greedy(rows: Rows) -> Rows:
    """Returns the rows that take the likeliest token, all kinds of questions together before each."""
    return in_order([row for row in rows if not row.get("temperature")], cells.category, cells.TASKS)


def arms_of_confidence(rows: Rows) -> Rows:
    """Returns what a picture of the curve shows: all tasks together, where there are several, of HAMburger alone.

    Points stand by token confidence, along which a line joins them.
    """
    fused = where(own_settings(rows), method="hamburger")
    return sorted(where(fused, task="all tasks") or fused, key=lambda row: row["token_confidence"])


def method_and_tree(row: Row) -> str:
    """Names the bar of a row."""
    return cells.method(row) if cells.tree(row) == NOTHING else f"{cells.method(row)}, {row['tree']}"


def speed_of_models(rows: Rows) -> Table:
    """A line a model: ours, transformers, the ratio."""
    ours = {row["report"]: row for row in with_range(where(rows, method="ar"))}
    theirs = {row["report"]: row for row in with_range(where(rows, method="transformers"))}
    columns = {
        "Model": lambda row: row["model_name"],
        "Tokens/s (range of the repeats)": with_interval("tokens_per_second", interval="range"),
        "transformers, same weights": cells.of("peer", with_interval("tokens_per_second", interval="range")),
        "Ratio": cells.of("peer", cells.ratio("ours_over_peer")),
    }
    names = {name: row.get("model") or row.get("random_init") for name, row in ours.items()}
    return listed([{**row, "model_name": names[n], "peer": theirs.get(n)} for n, row in ours.items()], columns)
