"""A report on the drafts of a row, made when the row has ended."""

import dataclasses
import math

import numpy as np

from jax_smash.costs import CostCurve
from jax_smash.decode.sized import SizedCalls
from jax_smash.decode.state import DecodeState
from jax_smash.sharding import on_host


@dataclasses.dataclass(frozen=True)
class Drafted:
    """How the drafts of one row fared.

    Attributes:
      tree: the tree that was asked for.
      source: the basis for the choice of trees, in words.
      nodes: drafted nodes per step when the batch ended; 0 where the drafter was off.
      steps: maps a number of drafted nodes to the steps of all batches so far that drafted so many; empty for a fixed
        tree.
      costs: maps a number of drafted nodes to what such a step was found to take, in plain steps; empty where nothing
        was measured.
      choices: drafted nodes and steps, in order, where the cost curve alone decides; else empty.
      curve: the cost curve that the choice began with; None for a fixed tree.
      tried: for each depth, from 1: steps with a node of this depth below a kept node.
      kept: for each depth: steps in which such a node was kept. It is emitted unless a stop or the limit comes before.
    """

    tree: str
    source: str
    nodes: int
    steps: dict[int, int]
    costs: dict[int, float]
    choices: list[tuple[int, int]]
    curve: CostCurve | None
    tried: list[int]
    kept: list[int]

    @property
    def acceptance(self) -> list[float | None]:
        """`kept` / `tried` for each depth; None where no node was tried."""
        return [k / t if t else None for k, t in zip(self.kept, self.tried, strict=True)]


def drafted_rows(
    state: DecodeState,
    *,
    tree: str,
    source: str,
    curve: CostCurve | None = None,
    sized: SizedCalls | None = None,
) -> list[Drafted] | None:
    """Returns how the drafts of each row fared; None in plain decoding.

    Args:
      state: the state after decoding.
      tree, source, curve: as in `Drafted`.
      sized: what divided the steps into calls; None for a fixed tree.
    """
    if "trees" not in state.shared.memory:
        return None
    trees, notes = state.shared.memory["trees"], state.rows.memory["drafts"]
    sizes = [topology.nodes - 1 for topology in trees.ladder]
    steps = {} if trees.sizing is None else dict(zip(sizes, np.asarray(trees.sizing.used).tolist(), strict=True))
    costs = [] if sized is None else sized.costs
    rows = zip(*(x.tolist() for x in on_host((notes.tried, notes.kept))), strict=True)
    return [
        Drafted(
            tree=tree,
            source=source,
            nodes=sizes[int(trees.choice)],
            steps=steps,
            costs={n: cost for n, cost in zip(sizes, costs, strict=False) if math.isfinite(cost)},
            choices=[] if sized is None else sized.choices,
            curve=curve,
            tried=tried,
            kept=kept,
        )
        for tried, kept in rows
    ]
