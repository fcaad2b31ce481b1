"""From `--tree` to the trees that a drafting method compiles, and what their choice rests on."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_smash.costs import CostCurve, Follower, StoppingFollower, assumed_costs, estimate_costs, load_costs, read_costs
from jax_smash.decode.budget import Sizing, unused
from jax_smash.draft.trees.acceptance import PRIOR_FALL, PRIOR_FIRST, prior_rates
from jax_smash.draft.trees.sizing import Rates, best_tree, choose_budget, choose_ladder, expected_tokens
from jax_smash.draft.trees.templates import named_tree, sized
from jax_smash.draft.trees.tree import Topology, chain
from jax_smash.hosts import decided
from jax_smash.platform import target_platform
from jax_smash.protocols import honours_trees
from jax_smash.shapes import bucket
from jax_smash.sharding import mesh_of, spans_hosts

if TYPE_CHECKING:
    from jax_smash.loading import Model

TILE = 8
"""Rows that the units of a TPU or GPU multiply together: fewer take as long."""

MOST_ROWS = 80
"""Rows of an automatic tree's forward, the root included, at most."""

RUNGS, CPU_RUNGS = 3, 2
"""Budgets of a ladder, 0 included. Each has a forward of its own to compile, which takes a CPU long and seldom pays."""

STOPPED = 0.6
"""Share of a whole draft's cost that a step takes for each token that it is expected to keep, where a drafter stops.

Of SmolLM2 on two cores, steps over chains of 5 that stop took 1.36 to 1.52 plain ones and kept 0.66 to 0.74 drafts.
Whole chains of 5 were taken to cost 2.
"""

UNMEASURED_GAIN = 1.1
"""Speed, in that of plain decoding, that drafts that stop are taken to have where one row decodes by no measured curve.

An estimated curve knows nothing of the forms that products of few rows have on a CPU, and is too dear. SmolLM2 with
EAGLE-3 had 1.09 and 1.14.
"""

CHAIN_NODES = 4
"""Drafted nodes of an automatic tree where the model reads every block in order."""

FOLLOWERS: dict[Hashable, dict[Hashable, Any]] = {}
"""What this process has learned of what steps take: by what decodes and whence its curve is, then by cache."""


@dataclasses.dataclass(frozen=True)
class Reach:
    """What a drafter's automatic trees can use, and what is expected of them before anything was seen.

    Attributes:
      ranks: candidates that it has for each token.
      levels: depth at most.
      first, deeper, fall: of `prior_rates`.
      stopping: nodes of the one tree beside no draft at all, where the drafter stops by itself; 0 where it does not.
    """

    ranks: int
    levels: int
    first: float = PRIOR_FIRST
    deeper: float | None = None
    fall: float = PRIOR_FALL
    stopping: int = 0

    def rates(self) -> Rates:
        """Returns acceptance to begin with."""
        return prior_rates(self.levels, self.ranks, first=self.first, deeper=self.deeper, fall=self.fall)

    def tree(self, nodes: int) -> Topology:
        """Returns the best tree of this many drafted nodes, with room for every tree of as many."""
        return best_tree(self.rates(), nodes, levels=min(self.levels, nodes))


@dataclasses.dataclass(frozen=True)
class Ladder:
    """Trees to compile.

    Attributes:
      trees: the smallest first; a root alone is plain decoding.
      source: where the trees are from, as a user is told it.
      first: index of the tree to begin with.
      sizing: what the choice rests on; None where there is one tree.
      curve: the cost curve that the choice begins with, of forwards without what drafting takes; likewise.
      follower: learns what steps take; None where the curve alone decides, and on several hosts.
    """

    trees: tuple[Topology, ...]
    source: str
    first: int = 0
    sizing: Sizing | None = None
    curve: CostCurve | None = None
    follower: Follower | StoppingFollower | None = None


def make_ladder(
    model: Model,
    tree: str,
    *,
    method: str,
    reach: Reach | None,
    batch: int,
    slots: int,
    sampled: bool = False,
    costs: Path | None = None,
    drafting: float = 0.0,
    once: float = 0.0,
    steps: str = "",
) -> Ladder:
    """Returns the tree of a name, or those that pay on this device.

    Args:
      model: the model that decodes.
      tree: `auto`, or a name of `draft.trees.templates.named_tree`; `tree-N` has the shape that suits the drafter.
      method: that drafts: its own measured costs come before those of the forward alone.
      reach: of its trees; None for a method whose trees are not sized.
      batch: rows that decode together.
      slots: cache slots a row.
      sampled: some row may sample.
      costs: a file with a cost curve, which then alone decides.
      drafting: plain steps that each drafted level takes before it is checked; added to the curve.
      once: plain steps that a draft takes whatever its size; added likewise.
      steps: tells the steps apart that one method makes of one model in several ways: what one kind takes says nothing
        of another.

    Raises:
      ValueError: there is no such tree, the method's trees are not sized, or a stored cost curve is damaged.
      OSError: a file cannot be read.
    """
    if tree != "auto":
        nodes = sized(tree)
        found = named_tree(tree) if nodes is None or reach is None else reach.tree(nodes)
        return Ladder(trees=(found,), source=f"the tree {tree}")
    if reach is None:
        raise ValueError(f"trees of method {method} have no automatic size: name one")
    if not honours_trees(model.definition.bind(model.params["target"])):
        source = f"a chain: {model.name} does not honour tree blocks"
        return Ladder(trees=(chain(min(CHAIN_NODES, reach.levels)),), source=source)
    rates, frozen = reach.rates(), costs is not None
    several = spans_hosts(mesh_of(model.params))

    def known() -> CostCurve:
        return read_costs(costs) if costs else _costs(model, method, batch=batch, slots=slots, sampled=sampled)

    # Of several hosts each has files of its own.
    curve = CostCurve.from_json(decided(lambda: known().to_json(), shared=several)) if several else known()
    drafted = _with_drafting(curve, reach, each=drafting, once=once)
    most, rungs = min(MOST_ROWS, curve.entries[-1]) - 1, CPU_RUNGS if target_platform() == "cpu" else RUNGS
    budgets: tuple[int, ...] = (0, min(reach.stopping, most))
    if not reach.stopping:
        budgets = choose_ladder(rates, drafted, most=most, rungs=rungs, tile=tile_rows())
    trees = tuple(reach.tree(n) for n in budgets)
    seconds = [drafted.at(n + 1) for n in budgets]
    if not reach.stopping:
        first = budgets.index(choose_budget(rates, drafted, budgets).budget)
    else:
        # A drafter that stops asks for a part of the forward, as it expects a part of its drafts to be kept.
        expected = expected_tokens(rates, trees[1])
        seconds[1] = seconds[0] + STOPPED * (expected - 1) * (seconds[1] - seconds[0])
        first = int(expected * seconds[0] > seconds[1])
    follower = None
    if not frozen and not several:
        # Curves from the same source share their error.
        mesh, stops = str(mesh_of(model.params)), bool(reach.stopping)
        decoding = (model.definition, mesh, method, steps, batch, sampled, stops, curve.source)
        relatives = FOLLOWERS.setdefault(decoding, {})
        beginning: Follower | StoppingFollower
        if stops:
            trusted = curve.measured or batch > 1
            gain = expected * seconds[0] / seconds[1] if trusted else UNMEASURED_GAIN
            beginning = StoppingFollower(gain, relatives=relatives.values())
        else:
            beginning = Follower(seconds, relatives=relatives.values())
        follower = relatives.setdefault((bucket(slots), budgets, drafted), beginning)
    return Ladder(
        trees=trees,
        first=first,
        sizing=unused(rates, trees, seconds),
        source=f"by {costs} alone" if frozen else curve.source,
        curve=curve,
        follower=follower,
    )


def tile_rows() -> int:
    """Returns the rows of which a tree's forward has a multiple on the platform that it is traced for."""
    return 1 if target_platform() == "cpu" else TILE


def narrows() -> bool:
    """Says whether a forward over few entries is worth a program of its own on the platform that it is traced for."""
    return target_platform() == "cpu"


def _with_drafting(curve: CostCurve, reach: Reach, *, each: float, once: float) -> CostCurve:
    """Returns a curve of forwards as one of steps that draft: so many plain steps for each level, and for a draft."""
    # A drafter goes down all levels that a tree has room for, as many as `Reach.tree` gives it.
    steps = (each * min(reach.levels, m - 1) + once * (m > 1) for m in curve.entries)
    seconds = (s + curve.seconds[0] * more for s, more in zip(curve.seconds, steps, strict=True))
    return dataclasses.replace(curve, seconds=tuple(seconds))


def _costs(model: Model, method: str, *, batch: int, slots: int, sampled: bool) -> CostCurve:
    if model.config is None:
        return assumed_costs(batch=batch, slots=slots, most=MOST_ROWS)
    params = model.params["target"]
    for name, samples in ((method, sampled), (method, False), ("", False)):
        stored = load_costs(model.config, params, batch=batch, slots=slots, method=name, sampled=samples)
        if stored is not None:
            return stored
    estimated = estimate_costs(model.config, params, batch=batch, slots=slots, most=MOST_ROWS)
    return estimated or assumed_costs(batch=batch, slots=slots, most=MOST_ROWS)
