"""What `jax-smash plan` prints."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from jax_smash.cli.screen import Printed

LEAST_WIDTH = 100
"""Columns that tables are given, also where the output is no terminal."""


def print_plan(told: Mapping[str, Any]) -> None:
    """Prints a plan's tables to stdout.

    Args:
      told: of `planning.report.report`, with the model's name, and what the compiler says under `compiled` if it was
        asked.
    """
    console = Printed(highlight=False, soft_wrap=True)
    console.width = max(console.width, LEAST_WIDTH)
    for line in summary(told):
        console.print(line, markup=False)
    for table in tables(told):
        console.print()
        console.print(table)


def summary(told: Mapping[str, Any]) -> list[str]:
    """Returns what a plan is for and what it comes to, as lines."""
    device, model, decode, best = told["device"], told["model"], told["decode"], told["best_batch"]
    devices = f"{device['devices']} devices" if device["devices"] > 1 else "1 device"
    method = told["method"] + (f", {told['tree']}" if told["tree"] else "")
    weights = "" if model["weights"] == "plain" else f", {model['weights']} weights"
    lines = [
        f"{told['name']}, {model['dtype']}{weights}, on {device['topology']}: {devices}, mesh {device['mesh']}",
        f"batch {told['batch']}, {told['context']:,} slots, prompts of {told['prompt']:,} tokens, method {method}",
        f"a device reads {device['bandwidth'] / 1e9:,.0f} GB/s and makes {device['peak'] / 1e12:,.0f} TFLOP/s: "
        f"{device['ridge']:.0f} operations a byte",
        f"first token after {told['time_to_first_token_ms']:.3g} ms; then {decode['ms_a_token']:.3g} ms a token, "
        f"{decode['tokens_a_second']:,.0f} tokens/s of all rows",
    ]
    if told["gains"]:
        times = f"{decode['gain']:.2f} times plain decoding's {1e3 * told['batch'] / decode['plain_ms']:,.0f} tokens/s"
        stated = f", with {decode['tokens_a_step']:.2f} tokens a step at an acceptance of {told['acceptance']:g}"
        lines.append(times + ("" if told["method"] == "ar" else stated))
    if not told["most_rows"]:
        return [*lines, "not even the smallest batch fits"]
    held = f"memory ends after {told['most_rows']:,} rows"
    if best is None:
        return [*lines, f"{held}; no batch gives a token in the time asked for"]
    return [
        *lines,
        f"{held}; the best batch is {best['batch']:,}, with {best['tokens_a_second']:,.0f} tokens/s and "
        f"{best['ms_a_token']:.3g} ms a token",
    ]


def tables(told: Mapping[str, Any]) -> list[Table]:
    """Returns a plan's tables."""
    memory = told["memory"]
    names = ("weights", "drafter", "cache", "rows", "shared", "temporaries", "total", "held")
    found = [
        _table(
            "bytes of a device",
            ("", "MB"),
            [(name if name != "held" else "the device has", f"{memory[name] / 1e6:,.1f}") for name in names],
        ),
        _parts("a decode step", told["decode"]["parts"]),
        _parts(f"prompts, {told['prefill']['chunk']} tokens at a time", told["prefill"]["parts"]),
        _table(
            "by batch",
            ("batch", "tree", "ms a token", "tokens/s", "GB", "fits"),
            [
                (
                    f"{x['batch']:,}",
                    x["tree"] or "",
                    f"{x['ms_a_token']:.3g}",
                    f"{x['tokens_a_second']:,.0f}",
                    f"{x['total_bytes'] / 1e9:,.1f}",
                    "yes" if x["fits"] else "no",
                )
                for x in told["batches"]
            ],
        ),
    ]
    if len(told["trees"]) > 1:
        found.append(
            _table(
                "trees",
                ("tree", "nodes", "tokens a step", "ms a step", "ms a token"),
                [
                    (x["tree"], str(x["nodes"]), *(f"{x[n]:.3g}" for n in ("tokens_a_step", "step_ms", "ms_a_token")))
                    for x in told["trees"]
                ],
            )
        )
    if told["method"] != "ar":
        rows = [(f"{x['acceptance']:g}", f"{x['gain']:.2f}") for x in told["gains"]]
        found.append(_table("gain over plain decoding", ("acceptance", "times"), rows))
    return found + ([_compiled(told["compiled"])] if "compiled" in told else [])


def _parts(title: str, parts: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            x["part"],
            f"{x['operations'] / 1e9:,.2f}",
            f"{x['bytes'] / 1e6:,.1f}",
            f"{x['intensity']:.3g}",
            f"{x['sent'] / 1e6:,.2f}",
            f"{x['ms']:.3g}",
            x["limit"],
        )
        for x in parts
    ]
    total = f"{sum(x['ms'] for x in parts):.3g}"
    columns = ("part", "GFLOP", "MB", "FLOP/byte", "MB sent", "ms", "limit")
    return _table(f"{title}, of a device", columns, [*rows, ("all", "", "", "", "", total, "")])


def _compiled(compiled: Mapping[str, Any]) -> Table:
    rows = []
    for x in compiled["programs"]:
        argument, planned = x["argument_bytes"], x["planned_argument_bytes"]
        told = ("", "") if planned is None else (f"{planned / 1e6:,.1f}", f"{planned / argument - 1:+.1%}")
        temporary = (f"{x[name] / 1e6:,.1f}" for name in ("temporary_bytes", "planned_temporary_bytes"))
        rows.append((x["program"], f"{argument / 1e6:,.1f}", *told, *temporary))
    columns = ("program", "arguments MB", "planned", "off by", "temporaries MB", "planned")
    return _table(f"compiled for {compiled['compiled_for']}", columns, rows)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, title_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table
