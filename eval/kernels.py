"""Kernels against the XLA path, on the device at hand.

    python -m eval.kernels --json kernels.json
    python -m eval.kernels --cases llama-8b-64,llama-8b-64-long --repeats 15

Figures are medians over repeats in which the implementations take turns. A CPU only interprets the kernels, which says
nothing about their speed: there the XLA path is timed alone.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval.reports.options import Names
from eval.reports.report import check_output, heading, print_table, progress, run_program, write_json
from pallas_kernels import sparse_attention, tree_attention
from pallas_kernels.sparse_attention import cases as sparse
from pallas_kernels.tree_attention.cases import BENCHMARKS, Case, make

CASES: dict[str, Case] = {case.name: case for case in (*BENCHMARKS, *sparse.BENCHMARKS)}
COLUMNS = ("program", "shape", "method", "ms", "speedup", "gigabytes_per_second", "largest_difference")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Times kernels against the XLA path.

    Attributes:
      cases: names of shapes; all by default.
      slots: at most this many slots of each shape's cache, as many held; a shape with pages keeps a whole one.
      repeats: of everything; medians count.
      calls: of one implementation before the next one's turn.
      json: file to write.
      overwrite: replace the file if it exists.
    """

    cases: Names = tuple(CASES)
    slots: int | None = None
    repeats: int = 9
    calls: int = 10
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be measured.

        Raises:
          ValueError: a case is unknown, or an option is out of range.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        if unknown := [name for name in self.cases or ("",) if name not in CASES]:
            raise ValueError(f"cases must be of {', '.join(CASES)}; got {unknown[0]!r}")
        for name in ("slots", "repeats", "calls"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        check_output(self.json, overwrite=self.overwrite)

    def shapes(self) -> list[Case]:
        """Returns the cases, with as many slots as are asked for."""
        found = [CASES[name] for name in self.cases]
        if self.slots is None:
            return found
        return [_cut(case, self.slots) for case in found]


def measure(settings: Settings) -> dict[str, Any]:
    """Times every case and returns the report without its heading.

    Raises:
      ValueError, OSError: an option is wrong.
    """
    settings.check()
    rows: list[dict[str, Any]] = []
    with progress("measuring", len(settings.cases)) as advance:
        for case in settings.shapes():
            rows += _rows(case, settings)
            advance()
    without = [row["shape"] for row in rows if row["method"] == "xla" and row["kernel"] is None]
    return {"notes": _notes(without), "rows": rows}


def _cut(case: Case, slots: int) -> Case:
    """Returns a case with at most so many slots."""
    cut: dict[str, Any] = {"slots": min(case.slots, slots)}
    if isinstance(case, sparse.Case):
        pages = max(1, cut["slots"] // case.page_size)
        cut = {"slots": pages * case.page_size, "most": min(case.most, pages)}
    return dataclasses.replace(case, **cut, held=tuple(min(h, cut["slots"]) for h in case.held))


def _rows(case: Case, settings: Settings) -> list[dict[str, Any]]:
    """Returns the XLA path's row, and behind it the kernel's where one runs here."""
    attend, kernel, arrays = _prepared(case)
    names = ["xla"] if kernel is None else ["xla", kernel]
    programs = {name: _compiled(functools.partial(attend, implementation=name), arrays) for name in names}
    results = {name: np.asarray(program()).astype(np.float32) for name, program in programs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(settings.repeats):
        for name, program in programs.items():
            seconds[name].append(_seconds(program, settings.calls))
    read = _bytes(case, *arrays)
    return [
        {
            "program": attend.func.__name__,
            "shape": case.name,
            "method": name,
            "kernel": kernel,
            "ms": 1e3 * statistics.median(seconds[name]),
            "speedup": statistics.median(a / b for a, b in zip(seconds["xla"], seconds[name], strict=True)),
            "gigabytes_per_second": read / statistics.median(seconds[name]) / 1e9,
            "largest_difference": float(np.abs(results[name] - results["xla"]).max()),
            "ms_by_repeat": [1e3 * s for s in seconds[name]],
            "case": dataclasses.asdict(case),
        }
        for name in names
    ]


def _prepared(case: Case) -> tuple[functools.partial[jax.Array], str | None, tuple[Any, ...]]:
    """Returns what attends, which kernel runs here if any, and the arrays."""
    numbers = vars(case.options)
    if isinstance(case, sparse.Case):
        inputs, pages = sparse.make(case)
        kernel = sparse_attention.kernel_here(inputs, pages, page_size=case.page_size)
        return functools.partial(sparse_attention.sparse_attention, **numbers), kernel, (inputs, pages)
    inputs = make(case)
    return functools.partial(tree_attention.tree_attention, **numbers), tree_attention.kernel_here(inputs), (inputs,)


def _compiled(run: Callable[..., jax.Array], arrays: tuple[Any, ...]) -> Callable[[], jax.Array]:
    return functools.partial(jax.jit(run).lower(*arrays).compile(), *arrays)


def _seconds(program: Callable[[], jax.Array], calls: int) -> float:
    """Returns the seconds of one call, of several whose launches overlap."""
    program().block_until_ready()
    began = time.perf_counter()
    results = [program() for _ in range(calls)]
    jax.block_until_ready(results)
    return (time.perf_counter() - began) / calls


def _bytes(case: Case, inputs: tree_attention.Inputs, pages: sparse_attention.Pages | None = None) -> int:
    """Returns the bytes of the keys and values that at least one entry sees, or that are chosen, scales included."""
    position, slot = np.asarray(inputs.position), np.asarray(inputs.slot_position)
    if pages is not None and isinstance(case, sparse.Case):
        chosen = int(np.sum(pages.counts)) * case.page_size * case.kv_heads // case.sets
    else:
        seen = slot <= position.max(1, keepdims=True)
        if case.window:
            seen &= slot > position.min(1, keepdims=True) - case.window
        chosen = int(seen.sum()) * case.kv_heads
    own = 2 * position.size * case.kv_heads * case.head_width * jnp.dtype(case.dtype).itemsize
    return chosen * case.slot_bytes + own


def _notes(without: Sequence[str]) -> list[str]:
    """Returns what a reader of the figures must know."""
    if jax.default_backend() == "cpu":
        return ["a CPU only interprets the kernels: the XLA path is timed alone"]
    return [f"no kernel runs here for {', '.join(without)}: the XLA path is timed alone"] if without else []


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Times, prints a table and writes the report."""
    found = measure(settings)
    report = heading("eval.kernels", arguments, dataclasses.asdict(settings)) | found
    print_table(f"{report['device']['kind']}: kernels against XLA's own operations", found["rows"], COLUMNS)
    for note in found["notes"]:
        print(note)
    if settings.json is not None:
        write_json(settings.json, report)


if __name__ == "__main__":
    run_program(Settings, main)
