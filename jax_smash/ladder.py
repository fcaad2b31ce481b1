"""From `--tree` to the trees that a drafting method compiles, and what their choice rests on."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp

from jax_smash.costs import CostCurve, estimate_costs, load_costs
from jax_smash.decode.budget import Sizing
from jax_smash.draft.acceptance import acceptance, prior_rates
from jax_smash.draft.sizing import best_tree, choose_budget, choose_ladder
from jax_smash.draft.templates import named_tree
from jax_smash.draft.tree import Topology

if TYPE_CHECKING:
    from jax_smash.loading import Model

LEVELS = 6
"""Depth of an automatic tree, at most."""

MOST_NODES = 80
"""Drafted nodes of an automatic tree, at most."""

DEFAULT_NODES = 24
"""Drafted nodes where nothing is known of what a step costs."""


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


def make_ladder(model: Model, tree: str, *, ranks: int, batch: int, slots: int) -> Ladder:
    """Returns the tree of a name, or those that pay on this device.

    Args:
      model: the model that decodes.
      tree: `auto`, or a name of `draft.templates.named_tree`.
      ranks: candidates that the drafter has for each token.
      batch: rows that decode together.
      slots: cache slots a row.

    Raises:
      ValueError: there is no such tree, or a stored cost curve is damaged.
      OSError: a file cannot be read.
    """
    if tree != "auto":
        return Ladder(trees=(named_tree(tree),), first=0, sizing=None, source=f"the tree {tree}")
    rates = prior_rates(LEVELS, ranks)
    cost = _costs(model, batch=batch, slots=slots)
    if cost is None:
        trees: tuple[Topology, ...] = (best_tree(rates, DEFAULT_NODES, levels=LEVELS),)
        return Ladder(trees=trees, first=0, sizing=None, source="nothing is known of this device: jax-smash tune")
    budgets = choose_ladder(rates, cost, most=min(MOST_NODES, cost.entries[-1] - 1))
    trees = tuple(best_tree(rates, n, levels=LEVELS if n else 0) for n in budgets)
    sizing = Sizing(
        known=acceptance(rates),
        seconds=jnp.asarray([cost.at(n + 1) for n in budgets], jnp.float32),
        steps=jnp.zeros((), jnp.int32),
        used=jnp.zeros((len(budgets),), jnp.int32),
    )
    first = budgets.index(choose_budget(rates, cost, budgets).budget)
    return Ladder(trees=trees, first=first, sizing=sizing, source=cost.source)


def _costs(model: Model, *, batch: int, slots: int) -> CostCurve | None:
    if model.config is None:
        return None
    params = model.params["target"]
    stored = load_costs(model.config, params, batch=batch)
    if stored is not None:
        return stored
    return estimate_costs(model.config, params, batch=batch, slots=slots, most=MOST_NODES + 1)
