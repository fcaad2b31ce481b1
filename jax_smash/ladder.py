"""From `--tree` to the trees that a drafting method compiles, and what their choice rests on."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp

from jax_smash.costs import CostCurve, estimate_costs, load_costs
from jax_smash.decode.budget import Sizing
from jax_smash.draft.acceptance import PRIOR_FALL, PRIOR_FIRST, acceptance, prior_rates
from jax_smash.draft.sizing import Rates, best_tree, choose_budget, choose_ladder
from jax_smash.draft.templates import named_tree, sized
from jax_smash.draft.tree import Topology, chain
from jax_smash.platform import target_platform
from jax_smash.protocols import honours_trees

if TYPE_CHECKING:
    from jax_smash.loading import Model

TILE = 8
"""Rows that the units of a TPU or GPU multiply together: fewer take as long."""

MOST_ROWS = 80
"""Rows of an automatic tree's forward, the root included, at most."""

DEFAULT_NODES = 23
"""Drafted nodes where nothing is known of what a step costs."""


CHAIN_NODES = 4
"""Drafted nodes of an automatic tree where the model reads every block in order."""


@dataclasses.dataclass(frozen=True)
class Reach:
    """What a drafter's automatic trees can use, and what is expected of them before anything was seen.

    Attributes:
      ranks: candidates that it has for each token.
      levels: depth at most.
      first, deeper, fall: of `prior_rates`.
    """

    ranks: int
    levels: int
    first: float = PRIOR_FIRST
    deeper: float | None = None
    fall: float = PRIOR_FALL

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
      first: index of the tree to begin with.
      sizing: what the choice rests on; None where there is one tree.
      source: where the trees are from, as a user is told it.
    """

    trees: tuple[Topology, ...]
    first: int
    sizing: Sizing | None
    source: str


def make_ladder(model: Model, tree: str, *, method: str, reach: Reach | None, batch: int, slots: int) -> Ladder:
    """Returns the tree of a name, or those that pay on this device.

    Args:
      model: the model that decodes.
      tree: `auto`, or a name of `draft.templates.named_tree`; `tree-N` has the shape that suits the drafter.
      method: that drafts: its own measured costs come before those of the forward alone.
      reach: of its trees; None for a method whose trees are not sized.
      batch: rows that decode together.
      slots: cache slots a row.

    Raises:
      ValueError: there is no such tree, the method's trees are not sized, or a stored cost curve is damaged.
      OSError: a file cannot be read.
    """
    if tree != "auto":
        nodes = sized(tree)
        found = named_tree(tree) if nodes is None or reach is None else reach.tree(nodes)
        return Ladder(trees=(found,), first=0, sizing=None, source=f"the tree {tree}")
    if reach is None:
        raise ValueError(f"trees of method {method} have no automatic size: name one")
    if not honours_trees(model.definition.bind(model.params["target"])):
        source = f"a chain: {model.name} does not honour tree blocks"
        return Ladder(trees=(chain(min(CHAIN_NODES, reach.levels)),), first=0, sizing=None, source=source)
    rates = reach.rates()
    cost = _costs(model, method, batch=batch, slots=slots)
    if cost is None:
        trees: tuple[Topology, ...] = (reach.tree(DEFAULT_NODES),)
        return Ladder(trees=trees, first=0, sizing=None, source="nothing is known of this device: jax-smash tune")
    budgets = choose_ladder(rates, cost, most=min(MOST_ROWS, cost.entries[-1]) - 1, tile=tile_rows())
    trees = tuple(reach.tree(n) for n in budgets)
    sizing = Sizing(
        known=acceptance(rates),
        seconds=jnp.asarray([cost.at(n + 1) for n in budgets], jnp.float32),
        steps=jnp.zeros((), jnp.int32),
        used=jnp.zeros((len(budgets),), jnp.int32),
    )
    first = budgets.index(choose_budget(rates, cost, budgets).budget)
    return Ladder(trees=trees, first=first, sizing=sizing, source=cost.source)


def tile_rows() -> int:
    """Returns the rows of which a tree's forward has a multiple on the platform that it is traced for."""
    return 1 if target_platform() == "cpu" else TILE


def _costs(model: Model, method: str, *, batch: int, slots: int) -> CostCurve | None:
    if model.config is None:
        return None
    params = model.params["target"]
    for name in (method, ""):
        stored = load_costs(model.config, params, batch=batch, method=name)
        if stored is not None:
            return stored
    return estimate_costs(model.config, params, batch=batch, slots=slots, most=MOST_ROWS)
