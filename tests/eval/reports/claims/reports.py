"""Small reports, in the form that the programs of eval write."""

from eval.reports.claims.stored import Report

CODE = {"eval/reports/options.py": "0" * 64}


def report(name="speed", program="eval.speed", rows=(), *, settings=None, **more) -> Report:
    """Returns a report of a CPU, with some fields in place of the usual ones."""
    content = {
        "command": f"python -m {program} --json {name}.json",
        "device": {"platform": "cpu", "kind": "cpu", "count": 1, "host_processor": "Some CPU", "host_cores": 2},
        "versions": {"python": "3.11.1", "jax": "0.10.2"},
        "commit": {"hash": "0123456789abcdef" * 2 + "01234567", "dirty": False},
        "settings": {"model": "tiny", "max_new_tokens": 8, "repeats": 3} | (settings or {}),
        "prompt_tokens": [4, 5],
        "rows": list(rows),
    }
    return Report(name, content | more)


def speed_row(method="ar", speeds=(10.0, 12.0, 14.0), **more) -> dict:
    """Returns a row of eval.speed."""
    row = {"method": method, "batch_size": 1, "tokens_per_second": sorted(speeds)[len(speeds) // 2], "speedup": 1.0}
    row |= {"tokens_per_second_by_repeat": list(speeds), "mean_accepted_tokens": 1.0, "roofline_fraction": 0.5}
    return row | more


def accepted_row(method, category, value, *, tree="recycling-80", nodes=80, chain=None, interval=None) -> dict:
    """Returns a row of eval.acceptance."""
    bounds = None if interval is None else {"low": interval[0], "high": interval[1]}
    row = {"method": method, "tree": tree, "temperature": 0.0, "category": category, "mean_accepted_tokens": value}
    row |= {"interval": bounds, "nodes": nodes}
    return row | ({} if chain is None else {"chain_mean_accepted_tokens": chain})


def quality_row(task, score, *, weights="plain", method="ar", difference=None, metric="accuracy", **more) -> dict:
    """Returns a row of eval.quality; `difference` is a value, low and high."""
    row = {"model": "tiny", "method": method, "task": task, "metric": metric, "n": 100, "score": score}
    row |= {"settings": {"dtype": "float32", "weights": weights}, "interval": None}
    row["interval"] = {
        "low": score - 0.1,
        "high": score + 0.1,
        "kind": "bootstrap" if metric == "perplexity" else "wilson",
    }
    row["difference"] = None
    if difference is not None:
        value, low, high = difference
        row["difference"] = {"value": value, "unit": "share", "interval": {"low": low, "high": high}}
    return row | more
