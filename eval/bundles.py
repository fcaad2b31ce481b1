"""Instruction bundles of a TPU kernel's inner loop, beside the least that its work takes. Nothing is run.

    python -m eval.bundles --chips v5e:1x1,v6e:1x1 --json bundles.json

A TPU core starts one bundle a cycle. The compiler writes the bundles of each kernel, and how many operations of each
unit they hold. The block of the cache is the longest straight piece of a kernel. Its floors are the cycles that its
bytes take of main memory, its products (heads filled up to 128 wide, as a matrix unit is deep) of the matrix units'
peak, and its other operations of the units that make them. Sparse attention takes about 13 bundles a page on top, which
start the page's two copies; a page of int8 has three.
"""

import dataclasses
import functools
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from eval.kernels import CASES
from eval.reports.options import Names
from eval.reports.report import check_output, heading, print_table, progress, run_program, write_json
from jax_smash.chips import TPUS
from jax_smash.planning.topology import check_chip, devices
from pallas_kernels.sparse_attention import cases as sparse_cases
from pallas_kernels.sparse_attention import tpu as sparse_tpu
from pallas_kernels.tree_attention import Inputs, tpu
from pallas_kernels.tree_attention.cases import Case
from pallas_kernels.tree_attention.inputs import WORD
from pallas_kernels.tree_attention.rows import round_up

SPARSE_CASES = {case.name: case for case in sparse_cases.BENCHMARKS}
LANES = 128
DEFAULT = ("llama-8b-80", "llama-1b-80")
UNITS = {"vector": "VALU", "transcendental": "EUP"}
SPILLS = ("VLOAD:FILL", "VSTORE:SPILL")
COLUMNS = ("chip", "case", "slots", "bundles", "floor", "bound_by", "over_floor", "spilled")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Counts the bundles of the kernels' inner loops for chips that are not at hand.

    Attributes:
      chips: topologies, as in v5e:1x1.
      cases: names of shapes.
      json: file to write.
      overwrite: replace the file if it exists.
    """

    chips: Names = ("v5e:1x1", "v6e:1x1")
    cases: Names = DEFAULT
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be compiled.

        Raises:
          ValueError: a chip or case is unknown.
          ImportError: the package `libtpu` is missing.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        for chip in self.chips:
            check_chip(chip)
            if chip.split(":")[0] not in TPUS:
                raise ValueError(f"chips must be TPUs ({', '.join(TPUS)}); got {chip!r}")
        if unknown := [name for name in self.cases or ("",) if name not in CASES]:
            raise ValueError(f"cases must be of {', '.join(CASES)}; got {unknown[0]!r}")
        check_output(self.json, overwrite=self.overwrite)


@dataclasses.dataclass(frozen=True)
class Piece:
    """A straight piece of a kernel.

    Attributes:
      bundles: how many.
      operations: of each unit.
      capacity: operations of each unit that a bundle holds.
    """

    bundles: int
    operations: dict[str, int]
    capacity: dict[str, int]

    def cycles(self, unit: str) -> float:
        """Returns the cycles that a unit's operations take at least."""
        return self.operations[unit] / self.capacity[unit]


def longest_piece(bundles: str, utilisation: str) -> Piece:
    """Returns the longest straight piece of a kernel.

    Args:
      bundles: the compiler's text of the final bundles, a numbered line each; a branch ends a piece, and so does a
        place that one leads to.
      utilisation: its table of the operations of each unit in every bundle, in the same order.

    Raises:
      ValueError: a text has another form.
    """
    table = utilisation.splitlines()
    names, capacity = table[1].split(", "), [int(n) for n in table[2].split()]
    rows = [[int(n) for n in line.split()] for line in table[4:] if line.strip()]
    numbered = [m for line in bundles.splitlines() if (m := re.match(r"\s*(0x[0-9a-f]+|0)\s+([A-Z]{2})?(.*)", line))]
    if len(numbered) != len(rows):
        raise ValueError(f"each of {len(numbered)} bundles must have a row of operations; got {len(rows)}")
    begins = {0, len(rows)}
    begins |= {i for i, m in enumerate(numbered) if m[2]}
    begins |= {i + 1 for i, m in enumerate(numbered) if "sbr.rel" in m[3]}
    ordered = sorted(begins)
    first, last = max(itertools.pairwise(ordered), key=lambda ends: ends[1] - ends[0])
    sums = [sum(column) for column in zip(*rows[first:last], strict=True)]
    return Piece(last - first, dict(zip(names, sums, strict=True)), dict(zip(names, capacity, strict=True)))


def counted(chip: str, name: str, piece: Piece) -> dict[str, Any]:
    """Returns the row of a case: its bundles beside their floors.

    Args:
      chip: that the kernel is compiled for.
      name: of the case.
      piece: that reads a block of the cache.
    """
    case, core = CASES[name], TPUS[chip.split(":")[0]].part(1)
    read = SPARSE_CASES[name].most * SPARSE_CASES[name].page_size if name in SPARSE_CASES else case.slots
    rows, slots = tpu.work_at_once(case.nodes, case.heads // case.kv_heads, read, case.slot_bytes)
    moved = slots * case.slot_bytes
    floors = {
        "memory": moved / core.bandwidth * core.clock,
        "matrix": 4 * rows * slots * round_up(case.head_width, LANES) / core.peak("bf16") * core.clock,
    } | {kind: piece.cycles(unit) for kind, unit in UNITS.items()}
    bound = max(floors, key=lambda kind: floors[kind])
    return {
        "chip": chip,
        "case": name,
        "slots": slots,
        "rows": rows,
        "bundles": piece.bundles,
        "floors": floors,
        "floor": floors[bound],
        "bound_by": bound,
        "over_floor": piece.bundles / floors[bound],
        "spilled": sum(piece.operations[unit] for unit in SPILLS),
        "operations": piece.operations,
        "capacity": piece.capacity,
    }


def compile_alone(chip: str, name: str) -> None:
    """Compiles a case's kernel alone. The compiler writes its texts where the process's environment says."""
    where = jax.sharding.SingleDeviceSharding(devices(chip)[0])
    if name in SPARSE_CASES:
        sparse = SPARSE_CASES[name]
        run = functools.partial(sparse_tpu.attend, options=sparse.options)
        jax.jit(run).lower(*sparse_cases.described(sparse, where)).compile()
        return
    case = CASES[name]
    jax.jit(lambda inputs: tpu.attend(inputs, case.options)).lower(_shapes(case, where)).compile()


def measure(settings: Settings) -> dict[str, Any]:
    """Compiles each case in a process of its own, since the compiler reads its options when it is loaded."""
    settings.check()
    rows = []
    with progress("kernels", len(settings.chips) * len(settings.cases)) as advance:
        for chip in settings.chips:
            for name in settings.cases:
                rows.append(counted(chip, name, _dumped(chip, name)))
                advance()
    return {"rows": rows}


def _dumped(chip: str, name: str) -> Piece:
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=.*final.*"
        done = subprocess.run(
            [sys.executable, "-c", f"from eval.bundles import compile_alone; compile_alone({chip!r}, {name!r})"],
            env=os.environ | {"LIBTPU_INIT_ARGS": flags, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{name} does not compile for {chip}: {done.stderr.strip()[-500:]}")
        kernel = "sparse_attention" if name in SPARSE_CASES else "tree_attention"
        texts = {part: _only(Path(folder), kernel, part) for part in ("final_bundles", "static-per-bundle-utilization")}
        return longest_piece(texts["final_bundles"], texts["static-per-bundle-utilization"])


def _only(folder: Path, kernel: str, part: str) -> str:
    found = [p for p in folder.glob(f"*-{kernel}*-*{part}.txt") if "schedule" not in p.name]
    if len(found) != 1:
        raise RuntimeError(f"the compiler must write one text {part} of {kernel}; got {len(found)}")
    return found[0].read_text()


def _shapes(case: Case, where: Any) -> Inputs:
    batch, width = len(case.held), case.nodes

    def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=where)

    own = (batch, width, case.kv_heads, case.head_width)
    cached = (batch, case.kv_heads, case.slots, case.head_width)
    return Inputs(
        query=array((batch, width, case.heads, case.head_width), case.dtype),
        key=array(own, case.dtype),
        value=array(own, case.dtype),
        position=array((batch, width), "int32"),
        valid=array((batch, width), "bool"),
        ancestors=array((batch, width, -(-width // WORD)), "uint32"),
        keys=array(cached, case.dtype),
        values=array(cached, case.dtype),
        slot_position=array((batch, case.slots), "int32"),
    )


def main(settings: Settings, arguments: Sequence[str] | None = None) -> int:
    """Counts, prints a table and writes the report."""
    settings.check()
    found = heading("eval.bundles", arguments, dataclasses.asdict(settings)) | measure(settings)
    print_table("Bundles of a block of the cache", found["rows"], COLUMNS)
    if settings.json is not None:
        write_json(settings.json, found)
    return 0


if __name__ == "__main__":
    run_program(Settings, main)
