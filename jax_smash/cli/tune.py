"""`jax-smash tune`: measure what a decode step costs by its size, and keep it for decoding."""

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jax_smash.cli.errors import UsageError
from jax_smash.cli.lists import Names, Numbers
from jax_smash.cli.options import DtypeName, WeightsName, at_least
from jax_smash.cli.pictures import check_plot, write_picture
from jax_smash.cli.program_options import ProgramFlags

if TYPE_CHECKING:
    from jax_smash.costs.curve import CostCurve

NODES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 128)


@dataclasses.dataclass(frozen=True)
class Tune:
    """Measure the time of a decode step by its tree's nodes, and store it for `--tree auto`."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A model's name (tiny, smollm2), a directory, a .gguf file, or owner/model on the Hugging Face hub."""
    dtype: DtypeName = "auto"
    """What weights and cache are held in; auto is the checkpoint's, and float32 for a shipped model."""
    weights: WeightsName = "plain"
    """int8 holds matrices as 8-bit integers, plain holds them in --dtype. Each is measured for itself."""
    batch_size: Numbers = (1,)
    """Rows that decode together; several are measured one after another."""
    slots: Annotated[
        int | None, tyro.conf.DisallowNone, tyro.conf.arg(metavar="S", help_behavior_hint="(default: 1024)")
    ] = None
    """Cache slots that a step reads, at most the model's context."""
    methods: Names = ()
    """Also measure whole steps of these methods (recycling, lookup, suffix, hybrid), drafting and learning included;
    --tree auto then goes by those."""
    sampled: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let the rows of --methods sample; --tree auto goes by that where rows sample."""
    nodes: Numbers = NODES
    """Nodes of the trees to measure, the root included, rising from 1."""
    repeats: Annotated[int, tyro.conf.arg(metavar="N")] = 7
    """Timed calls of each size, interleaved. Of what a size costs beside a plain step, the upper quartile counts."""
    plot: Annotated[Path | None, tyro.conf.DisallowNone, tyro.conf.arg(metavar="FILE.png", help_behavior_hint="")] = (
        None
    )
    """Draw the curves into a picture."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let --plot replace a file. A stored curve is always replaced."""
    kept: tyro.conf.OmitArgPrefixes[ProgramFlags] = dataclasses.field(default_factory=ProgramFlags)

    def run(self) -> None:
        """Checks everything that can be checked without the model, then measures, stores and prints.

        Raises:
          UsageError: options are out of range.
          FileNotFoundError, ValueError: as `jax_smash.load` says; or the machine was busy, and no curve is stored.
          OSError: a curve cannot be stored.
          ImportError: a picture is asked for and matplotlib is not installed.
        """
        self._check()
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        from jax_smash.costs.store import check_writable, cost_key, costs_directory, save_costs
        from jax_smash.loading import find, load
        from jax_smash.platform import prepare_devices
        from jax_smash.serve.tuning import measure_costs, measure_method

        prepare_devices()
        self.kept.begin(self.model)
        find(self.model)
        check_writable(costs_directory())
        console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        curves = []
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(f"loading {self.model}", total=None)
            model = load(self.model, dtype=None if self.dtype == "auto" else self.dtype, weights=self.weights)
            assert model.config is not None
            slots = min(self.slots or 1024, model.config.max_positions)
            if self.nodes[-1] > slots:
                raise UsageError(f"--nodes must be at most the cache's {slots} slots; got {self.nodes[-1]}")
            params = model.params["target"]
            for batch, method in itertools.product(self.batch_size, ("", *self.methods)):
                bar.reset(task, description=f"batch {batch}" + (f", {method}" if method else ""), total=None)
                sampled = self.sampled and bool(method)
                measure = functools.partial(measure_method, name=method, sampled=sampled) if method else measure_costs
                curve = measure(
                    model,
                    batch=batch,
                    slots=slots,
                    entries=self.nodes,
                    repeats=self.repeats,
                    progress=lambda done, total: bar.update(task, completed=done, total=total),
                )
                if curve.busy:
                    raise ValueError(
                        f"the machine was busy: what a size costs varied by {curve.spread:.0%}, so the curve of batch "
                        f"{batch} is not stored; stop other work, or take more --repeats"
                    )
                key = cost_key(model.config, params, batch=batch, slots=slots, method=method, sampled=sampled)
                path = save_costs(curve, key)
                cores = f", {key.cores} cores" if key.cores else ""
                place = f"{self.model}, {key.dtype}, {key.weights} weights, {key.device}{cores}"
                console.print(f"wrote {path}")
                print(f"{place}\n{table(curve, method)}", flush=True)
                if not method:
                    curves.append(curve)
        if self.plot is not None:
            from jax_smash.costs.plot import plot_costs  # matplotlib takes a second to import.

            write_picture(self.plot, plot_costs(curves, title=place))
            console.print(f"wrote {self.plot}")

    def _check(self) -> None:
        check_nodes(self.nodes)
        for batch in self.batch_size:
            at_least("--batch-size", batch, 1)
        if not self.batch_size:
            raise UsageError("--batch-size must be one number or more; got none")
        self._check_methods()
        self.kept.check(self.model)
        at_least("--repeats", self.repeats, 1)
        if self.slots is not None:
            at_least("--slots", self.slots, 1)
        if self.plot is not None:
            check_plot(self.plot, overwrite=self.overwrite)
        elif self.overwrite:
            raise UsageError("--overwrite is about --plot; give it a file")

    def _check_methods(self) -> None:
        if not self.methods:
            if self.sampled:
                raise UsageError("--sampled is about --methods; name one")
            return
        from jax_smash.methods import REACH

        for method in self.methods:
            if method not in REACH:
                raise UsageError(
                    f"--methods must be of {', '.join(REACH)}; got {method!r}. For trained drafters measure without "
                    "--methods: --tree auto adds what drafting takes by its bytes"
                )


def check_nodes(nodes: tuple[int, ...]) -> None:
    """Checks the numbers of `--nodes`.

    Raises:
      UsageError: they do not rise from 1.
    """
    if nodes[:1] != (1,) or any(a >= b for a, b in itertools.pairwise(nodes)):
        raise UsageError(f"--nodes must be numbers that rise from 1, as in 1,2,4; got {','.join(map(str, nodes))}")


def table(curve: "CostCurve", method: str = "") -> str:
    """Returns a curve as lines to read.

    Args:
      curve: what was measured.
      method: whose drafting is part of each step; "" for the forward alone.
    """
    lines = [
        f"batch {curve.batch}, {curve.slots:,} slots" + (f", whole steps of {method}" if method else ""),
        f"{'nodes':>7} {'ms':>10} {'T(m)/T(1)':>10} {'ms a node':>10}",
    ]
    for m, seconds, relative in zip(curve.entries, curve.seconds, curve.relative(), strict=True):
        lines.append(f"{m:>7} {1e3 * seconds:>10.3f} {relative:>10.2f} {1e3 * seconds / m:>10.3f}")
    return "\n".join(lines)
